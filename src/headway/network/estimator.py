"""Estimates the link from the traffic itself, and detects when it changes."""

from __future__ import annotations

import math
from dataclasses import dataclass

from headway.network.changes import ChangeWatch
from headway.network.link import Link
from headway.network.tracking import Track

_MIN_SHARE = 0.2
"""A transfer is used for β if bytes make up at least this share of its time."""
_LEAST_BYTES = 1 << 13
"""Smaller transfers are dominated by thread wake-ups, and say nothing about β."""
_CLEAR_SHARE = 0.5
"""If bytes make up at least this share, the whole deviation is attributed to β."""
TIMING_S = 3e-3
"""By how much clocks and threads are late now and then, on a machine with a core for each process."""
_LEAST_RATIO = 1e-3
_LEAST_LATENCY_S, _MOST_BPS = 1e-7, 1e13


@dataclass(frozen=True, kw_only=True)
class Observation:
    """A transfer: how often latency was paid, how many bytes were waited for, and how long it took."""

    rounds: float
    num_bytes: float
    seconds: float

    def __post_init__(self) -> None:
        if not (self.rounds >= 0 and self.num_bytes > 0):
            raise ValueError(f"{self.rounds} rounds of {self.num_bytes} bytes are not a transfer")
        if not math.isfinite(self.seconds):
            raise ValueError(f"seconds is {self.seconds}, but must be a number")


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """The link, and the errors of its estimate."""

    link: Link
    latency_error: float
    """The relative standard error of α."""
    bandwidth_error: float
    """The relative standard error of β."""


@dataclass(frozen=True, kw_only=True)
class Change:
    """A lasting change of the link."""

    what: str
    """The quantity in which it was detected: "latency" or "bandwidth"."""
    before: Link
    after: Link


MOST_CHANGES = 100


@dataclass(frozen=True, kw_only=True)
class NetworkView:
    """What all ranks know of the network: the estimate in force, and the latest lasting changes, oldest first."""

    estimate: Estimate
    changes: tuple[Change, ...] = ()
    """At most `MOST_CHANGES`."""


class Estimator:
    """Follows a link, and reports a change when α or β has moved by 10% or more for good.

        seconds = rounds · α + bytes · β

    α follows from small messages (`observe_latency`), and β from transfers, given α. After a certain change the
    quantity is learned again, first from the observations that the change was based on; since β depends on α, a change
    of α makes β be learned again as well.

    Args:
        first: The link as probed or guessed.
        timing_s: By how much threads may be late: shorter transfers say little.

    >>> estimator = Estimator(Link(latency_s=0.01, bandwidth_bps=1e8))
    >>> for _ in range(20):
    ...     _ = estimator.observe_latency(0.02)
    ...     _ = estimator.observe(Observation(rounds=2, num_bytes=1e6, seconds=0.04 + 0.16))
    >>> link = estimator.estimate.link
    >>> round(link.latency_s, 3), round(link.bandwidth_bps / 1e6)
    (0.02, 50)
    """

    def __init__(self, first: Link, *, timing_s: float = TIMING_S) -> None:
        self._timing_s = timing_s
        self._alpha = Track(max(first.latency_s, _LEAST_LATENCY_S), trusts_shorter=True)
        self._beta = Track(8 / min(first.bandwidth_bps, _MOST_BPS))
        self._latencies: ChangeWatch[float] = ChangeWatch()
        self._transfers: ChangeWatch[Observation] = ChangeWatch()

    @property
    def estimate(self) -> Estimate:
        """The current estimate."""
        return Estimate(link=self._link, latency_error=self._alpha.error, bandwidth_error=self._beta.error)

    @property
    def is_suspicious(self) -> bool:
        """Whether a change is likely, but not yet certain: more observations would be welcome."""
        return self._latencies.is_suspicious or self._transfers.is_suspicious

    def observe_latency(self, seconds: float) -> Change | None:
        """Add the time of a small message; return the change that it confirms, if any."""
        seconds = max(seconds, _LEAST_LATENCY_S)
        usual = self._latencies.usual or self._alpha.value
        if self._latencies.raises(seconds, math.log(seconds / usual)):
            return self._start_over("latency")
        self._alpha.learn(seconds)
        self._latencies.settle_on(self._alpha.value)
        return None

    def observe(self, transfer: Observation) -> Change | None:
        """Add a transfer, if it is large enough; return the change that it confirms, if any."""
        if transfer.num_bytes < _LEAST_BYTES:
            return None
        beta = self._transfers.usual or self._beta.value
        latency_s, bytes_s = transfer.rounds * self._alpha.value, transfer.num_bytes * beta
        share = bytes_s / (latency_s + bytes_s)
        deviation = self._deviation(transfer.seconds, latency_s + bytes_s)
        if self._transfers.raises(transfer, deviation / share if share > _CLEAR_SHARE else deviation):
            return self._start_over("bandwidth")
        self._learn(transfer)
        self._transfers.settle_on(self._beta.value)
        return None

    def expect_other_traffic(self) -> None:
        """Expect transfers of another kind: a misfit of the cost model is not a change of the network."""
        self._transfers.restart()
        self._beta.doubt()

    @property
    def _link(self) -> Link:
        return Link(latency_s=self._alpha.value, bandwidth_bps=min(8 / self._beta.value, _MOST_BPS))

    @property
    def usual(self) -> Link:
        """The long-term link: the estimate may already follow a change."""
        beta = self._transfers.usual or self._beta.value
        return Link(latency_s=self._latencies.usual or self._alpha.value, bandwidth_bps=min(8 / beta, _MOST_BPS))

    def _deviation(self, seconds: float, expected_s: float) -> float:
        """Return the logarithm of measured / expected, less what late threads can explain."""
        excess_s, noise_s = seconds - expected_s, self._timing_s**2 / (self._timing_s + expected_s)
        beyond_s = math.copysign(max(abs(excess_s) - noise_s, 0.0), excess_s)
        certainty = max(seconds, 0.0) / (max(seconds, 0.0) + self._timing_s)
        return math.log(max(1 + beyond_s / expected_s, _LEAST_RATIO)) * certainty

    def _learn(self, transfer: Observation) -> None:
        """Update β by a transfer, if bytes take enough of its time."""
        latency_s, bytes_s = transfer.rounds * self._alpha.value, transfer.num_bytes * self._beta.value
        observed_s = transfer.seconds - latency_s
        informative_s = max(bytes_s, observed_s) if self._beta.is_fresh else bytes_s  # noise must not justify itself
        share = informative_s / (latency_s + informative_s + self._timing_s)
        if share >= _MIN_SHARE:
            self._beta.learn(max(observed_s, 0.0) / transfer.num_bytes, share)

    def _start_over(self, what: str) -> Change:
        """Learn again from the latest observations; some may predate the change, so the next ones weigh much too."""
        before = self.usual
        if what == "latency":
            self._alpha.start_over()
            for seconds in self._latencies.behind_alarm:
                self._alpha.learn(seconds)
            self._alpha.start_over()
            self._latencies.restart()
        self._beta.start_over()
        for transfer in self._transfers.behind_alarm:
            self._learn(transfer)
        self._beta.start_over()
        self._transfers.restart()
        return Change(what=what, before=before, after=self._link)
