"""Follows the link, on rank 0: turns what ranks report in control rounds into observations of an estimator."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from headway.collectives import RankReports, pings_worth_sending
from headway.exchange import ExchangeRecord
from headway.network import Calibration, Change, Estimate, Estimator, Link, Observation
from headway.network.estimator import TIMING_S
from headway.tuner.messages import Report

BRIEF_PINGS = 2
"""The pings of a brief control round, which only shows whether something has changed."""
_UNUSUAL = 0.3
"""A latency is unusual if it differs by this much, and by more than late threads explain."""
_NUM_MESSAGES_LATE = 40
"""Threads are late by about the time that processing this many messages takes."""
_MOST_REPEATS = 3
"""How often an unusual latency counts that two control rounds have measured."""

TrafficKind = tuple[str, str]
"""Exchange and algorithm: collectives that the cost model fits equally well."""


class Tracker(Protocol):
    """What the control loop asks about the link, on rank 0."""

    @property
    def estimate(self) -> Estimate:
        """The link as it is now."""

    @property
    def usual(self) -> Link:
        """The link as it has been for long: the estimate may already follow a change."""

    @property
    def is_suspicious(self) -> bool:
        """Whether a change is likely, but not yet certain."""

    def num_pings(self, *, is_thorough: bool) -> int:
        """Return how many pings a control round should send."""

    def reconsider_pings(self, latency_s: float, *, is_thorough: bool) -> int:
        """Return how many pings to send, given the latency measured so far; 0 for as many as planned."""

    def observe(
        self, records: Sequence[ExchangeRecord], reports: Sequence[Report], gathered: RankReports
    ) -> list[Change]:
        """Take in a control round; return the changes that are certain now."""


class GivenLink:
    """A tracker for a link that is not followed: control rounds do not measure it.

    Args:
        link: The link.
    """

    is_suspicious = False

    def __init__(self, link: Link) -> None:
        self.usual = link
        self.estimate = Estimate(link=link, latency_error=0.0, bandwidth_error=0.0)

    def num_pings(self, *, is_thorough: bool) -> int:
        del is_thorough
        return 1

    def reconsider_pings(self, latency_s: float, *, is_thorough: bool) -> int:
        del latency_s, is_thorough
        return 0

    def observe(
        self, records: Sequence[ExchangeRecord], reports: Sequence[Report], gathered: RankReports
    ) -> list[Change]:
        del records, reports, gathered
        return []


class LinkTracker:
    """Pins α by the control rounds themselves, and β by the transfers that ranks report.

    A collective took from the moment the last rank began until the last one ended, on rank 0's clock: neither
    stragglers nor clock offsets count. Each exchange reports its largest collective.

    Args:
        first: Link and overhead from calibration, to start from.
    """

    def __init__(self, first: Calibration) -> None:
        self._timing_s = max(TIMING_S, _NUM_MESSAGES_LATE * first.overhead.message_s)
        self._estimator = Estimator(first.link, timing_s=self._timing_s)
        self._kinds: set[TrafficKind] = set()
        self._was_unusual = False
        """Whether the last control round measured an unusual latency."""

    @property
    def estimate(self) -> Estimate:
        return self._estimator.estimate

    @property
    def usual(self) -> Link:
        return self._estimator.usual

    @property
    def is_suspicious(self) -> bool:
        return self._was_unusual or self._estimator.is_suspicious

    def num_pings(self, *, is_thorough: bool) -> int:
        return pings_worth_sending(self.estimate.link.latency_s) if is_thorough else BRIEF_PINGS

    def reconsider_pings(self, latency_s: float, *, is_thorough: bool) -> int:
        return pings_worth_sending(latency_s) if is_thorough or self._is_unusual(latency_s) else 0

    def observe(
        self, records: Sequence[ExchangeRecord], reports: Sequence[Report], gathered: RankReports
    ) -> list[Change]:
        kinds = {(record.exchange, record.algorithm) for record in records}
        if not kinds <= self._kinds:
            self._estimator.expect_other_traffic()
        self._kinds |= kinds
        durations_s = durations_on_network(reports, gathered.offsets_s)
        moves = [*self._observe_latency(gathered), *self._observe_transfers(records, durations_s)]
        return [change for change in moves if change is not None]

    def _is_unusual(self, latency_s: float) -> bool:
        """Return whether a latency differs so much from the estimate that more pings are worth sending."""
        usual_s = self.estimate.link.latency_s
        return abs(latency_s - usual_s) > max(_UNUSUAL * usual_s, self._timing_s / 3)

    def _observe_latency(self, gathered: RankReports) -> list[Change | None]:
        """Take in the latency, if enough pings were sent; an unusual one counts more often in a second round.

        Each ping was answered by all ranks, and counts as an observation of its own.
        """
        if gathered.num_pings <= BRIEF_PINGS:
            self._was_unusual = False
            return []
        latency_s = gathered.median_latency_s
        was_unusual, self._was_unusual = self._was_unusual, self._is_unusual(latency_s)
        num_times = min(gathered.num_pings, _MOST_REPEATS) if was_unusual and self._was_unusual else 1
        return [self._estimator.observe_latency(latency_s) for _ in range(num_times)]

    def _observe_transfers(
        self, records: Sequence[ExchangeRecord], durations_s: Sequence[float]
    ) -> list[Change | None]:
        moves = []
        for record, seconds in zip(records, durations_s, strict=False):
            cost, net_s = record.largest.cost, max(seconds - record.largest.cost.overhead_s, 0.0)
            transfer = Observation(rounds=cost.latencies, num_bytes=cost.path_bytes, seconds=net_s)
            moves.append(self._estimator.observe(transfer))
        return moves


def durations_on_network(reports: Sequence[Report], offsets_s: Sequence[float]) -> list[float]:
    """Return how long each reported collective was on the network: from the last start to the last end.

    Args:
        reports: One of each rank.
        offsets_s: How far the clock of each rank is ahead of rank 0's.
    """
    rows = [
        [(span.begun_at - offset_s, span.ended_at - offset_s) for span in report.spans]
        for report, offset_s in zip(reports, offsets_s, strict=True)
    ]
    return [
        max(ended_at for _, ended_at in spans) - max(begun_at for begun_at, _ in spans)
        for spans in zip(*rows, strict=False)
    ]
