"""Keeps the link in force up to date, from the records of exchanges: all ranks combine theirs in a council."""

from __future__ import annotations

import atexit
import contextlib
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from headway.collectives import Executor, Hearing, calls_worth_making
from headway.exchange.advisor import Advisor
from headway.exchange.engine import Engine
from headway.exchange.records import ExchangeRecord
from headway.exchange.rhythm import Rhythm, delay_for
from headway.network import Calibration, Change, Estimate, Estimator, Link, Observation
from headway.network.estimator import TIMING_S

_MOST_RECORDS = 16
"""In one council: the latest. A report stays below 300 bytes."""
_NUMBERS = 2
"""Of a record: when its largest collective began and ended."""
_WHAT = ("latency", "bandwidth")
_NUM_ANSWERS = 12
_BRIEF = 2
"""Calls of a council that only looks whether something has changed."""
_ODD = 0.3
"""A latency is odd that differs by so much, and by more than threads that wake late explain."""
_NUM_MESSAGES_LATE = 40
"""Threads are late by about as long as it takes to process so many messages."""
_MOST_WITNESSES = 3
_NUM_LATENCIES = 6
"""Of a brief council."""
_MOST_PAUSE_S = 0.02
_SMOOTHING = 0.2
_LEAVING_S = 2.0
_WORTH_ADOPTING = 0.1
"""The link in force follows the estimate where they differ by more: choices do not flap."""
PATIENCE_S = 86_400.0
"""Councils last as long as the step they are held in; who is missing is found out by the exchanges of the step."""

TrafficKind = tuple[str, str]
"""Exchanges that the model fits equally well: name and algorithm."""


@dataclass(frozen=True, kw_only=True)
class NetworkView:
    """What a rank knows of the network; the same on all ranks."""

    estimate: Estimate
    changes: tuple[Change, ...] = ()


class Monitor:
    """Holds councils, at which rank 0 turns everybody's records into observations, and an advisor chooses the plan.

    A collective took from the moment the last rank began until the last one ended, by the clock of rank 0: neither
    stragglers nor clocks count. Of each exchange the largest one is reported. The council itself pins α. It is held on
    a thread and on connections of its own: everybody waits for the call from the beginning of the step, and rank 0
    calls when the exchanges of the step are over and the network is idle. The result counts three steps later, or more
    where steps are short beside latency, so that nobody waits for it.

    **Cost**: 8 α beside the training, or 40 ms where latency is small, and some 500 bytes a rank, every
    ``interval`` steps, or every third step while a change is suspected; with an advisor, 6 α and 900 bytes every
    third step. No other traffic. The step before a thorough council has plain dense buckets averaged one after the
    other, so that each tells how long it takes.

    Args:
        executor: Holds the councils, and does nothing else.
        first: What calibration has found.
        interval: Steps between councils; with an advisor, between thorough ones.
        advisor: Chooses the plan, if it is to be chosen.
        timeout_s: How long to wait for the result when it is due.
    """

    def __init__(
        self,
        executor: Executor,
        first: Calibration,
        interval: int,
        advisor: Advisor | None = None,
        *,
        timeout_s: float = 60.0,
    ) -> None:
        self._executor = executor
        self._advisor = advisor
        self._timeout_s = timeout_s
        self._engine = Engine("headway-council")
        self._timing_s = max(TIMING_S, _NUM_MESSAGES_LATE * first.overhead.message_s)
        self._estimator = Estimator(first.link, timing_s=self._timing_s)
        self._rhythm = Rhythm(interval, looks_often=advisor is not None)
        self._kinds: set[TrafficKind] = set()
        self._ended_at: float | None = None
        self._step_s = 0.0
        """How long steps take, the shorter ones of late."""
        self._was_odd = False
        """Whether the latency was quite another in the last council."""
        self._started_at: int | None = None
        self._step_is_over = threading.Event()
        self._answer: list[float] = []
        self.view = NetworkView(estimate=self._estimator.estimate)
        atexit.register(self.leave)

    def is_due(self, step: int) -> bool:
        """Return whether a council is to be held in a step, if none is under way; all ranks say the same."""
        return self._rhythm.is_due(step)

    def is_measured(self, step: int) -> bool:
        """Return whether a step is to tell all it can, for the council that follows; all ranks say the same."""
        return self._rhythm.is_measured(step)

    def start(self, step: int, records: Sequence[ExchangeRecord]) -> None:
        """Begin a council at the beginning of a step, about the records since the last one."""
        self._started_at = step
        self._rhythm.start(step)
        self._step_is_over.clear()
        chosen = [record for record in records if record.was_alone][-_MOST_RECORDS:]
        advice = [] if self._advisor is None else self._advisor.report(records)
        self._engine.submit(lambda: self._consult(step, chosen, advice), give_up=self._executor.abandon)

    @property
    def is_under_way(self) -> bool:
        """Whether there is a council whose result does not count yet."""
        return self._started_at is not None

    def end_step(self) -> None:
        """Let rank 0 call: the exchanges of the step are over."""
        self._step_is_over.set()
        before, self._ended_at = self._ended_at, time.monotonic()
        if before is not None:
            step_s = self._ended_at - before
            self._step_s = min(step_s, self._step_s + _SMOOTHING * (step_s - self._step_s) if self._step_s else step_s)

    def finish(self, step: int) -> bool:
        """At the beginning of a step: take in the answer that counts from now on; return whether there is one."""
        if self._started_at is None or step < self._started_at + self._rhythm.delay:
            return False
        self._take_in_answer()
        return True

    def end_council(self) -> None:
        """End the council that is under way, between steps, as all ranks do."""
        self._step_is_over.set()
        if self._started_at is not None:
            self._take_in_answer()

    def restart(self, step: int) -> None:
        """Go on from another step, as all ranks do."""
        self._rhythm.restart(step)

    def abandon(self) -> None:
        """Let nobody wait for this rank any more: training has failed."""
        self._step_is_over.set()
        self._executor.abandon()

    def leave(self) -> None:
        """At the end of the process: let a council that is under way end, and do not wait long for it."""
        self._step_is_over.set()
        with contextlib.suppress(Exception):
            self._engine.drain(_LEAVING_S)

    def close(self) -> None:
        """End the thread and the connections."""
        atexit.unregister(self.leave)
        self._step_is_over.set()
        try:
            self._engine.drain(self._timeout_s)
        except Exception:  # nobody is to be kept waiting by a rank that is busy, or gone
            self._executor.abandon()
        self._engine.close()
        self._executor.close()

    def _take_in_answer(self) -> None:
        try:
            self._engine.drain(self._timeout_s)
        except TimeoutError:
            self.abandon()
            self._engine.drain()
        self._started_at = None
        self._adopt(self._answer)

    def _consult(self, step: int, records: Sequence[ExchangeRecord], advice: Sequence[float]) -> None:
        report = torch.zeros(_MOST_RECORDS, _NUMBERS, dtype=torch.float64)
        for row, record in zip(report, records, strict=False):
            row.copy_(torch.tensor([record.largest.begun_at, record.largest.ended_at], dtype=torch.float64))
        is_thorough = self._rhythm.is_thorough(step)
        thorough = calls_worth_making(self._estimator.estimate.link.latency_s)
        self._answer = self._executor.consult(
            torch.cat([report.flatten(), torch.tensor(advice, dtype=torch.float64)]),
            _NUM_ANSWERS + (0 if self._advisor is None else self._advisor.num_answers),
            lambda hearing: torch.tensor(self._decide(step, records, hearing), dtype=torch.float64),
            ready=self._wait_for_end_of_step,
            num_calls=thorough if is_thorough else _BRIEF,
            reconsider=lambda latency_s: calls_worth_making(latency_s) if is_thorough or self._is_odd(latency_s) else 0,
        ).tolist()

    def _is_odd(self, latency_s: float) -> bool:
        """Return whether a latency, known from few calls, is so unlike the estimate that more calls are worth it."""
        usual_s = self._estimator.estimate.link.latency_s
        return abs(latency_s - usual_s) > max(_ODD * usual_s, self._timing_s / 3)

    def _wait_for_end_of_step(self) -> None:
        """Wait until the step's exchanges are over here, and a little longer, for what others still have to send."""
        self._step_is_over.wait()
        time.sleep(self._pause_s)

    @property
    def _pause_s(self) -> float:
        return min(self._estimator.estimate.link.latency_s, _MOST_PAUSE_S)

    def link_to_adopt(self, in_force: Link) -> Link:
        """Return the estimate if it is worth following, or else what is in force."""
        link = self.view.estimate.link
        moves = (link.latency_s / max(in_force.latency_s, 1e-9), link.bandwidth_bps / in_force.bandwidth_bps)
        return link if any(abs(move - 1) > _WORTH_ADOPTING for move in moves) else in_force

    def _decide(self, step: int, records: Sequence[ExchangeRecord], hearing: Hearing) -> list[float]:
        """Take everything in, at rank 0; return what has changed, when to meet again, the estimate, and the advice."""
        before = self._estimator.usual
        kinds = {(record.exchange, record.algorithm) for record in records}
        if not kinds <= self._kinds:
            self._estimator.expect_other_traffic()
        self._kinds |= kinds
        moves = [*self._observe_latency(hearing), *self._observe_transfers(records, hearing)]
        changes = [change for change in moves if change is not None]
        moved = {change.what for change in changes}
        now = self._estimator.estimate
        advice, is_restless = [], bool(moved) or self._was_odd or self._estimator.is_suspicious
        if self._advisor is not None:
            reports = hearing.reports[:, _MOST_RECORDS * _NUMBERS :]
            advice = self._advisor.decide(
                step + self._rhythm.delay, reports, now.link, changes, is_steady=not is_restless
            )
            is_restless = is_restless or self._advisor.is_restless
        links = (before.latency_s, before.bandwidth_bps, now.link.latency_s, now.link.bandwidth_bps)
        flags = [float(what in moved) for what in _WHAT]
        rhythm = self._rhythm.following(step, is_restless=is_restless)
        council_s = _NUM_LATENCIES * now.link.latency_s + self._pause_s
        return [
            *flags,
            *rhythm,
            delay_for(council_s, self._step_s),
            *links,
            now.latency_error,
            now.bandwidth_error,
            *advice,
        ]

    def _observe_latency(self, hearing: Hearing) -> list[Change | None]:
        """Take in the latency, if it is well known; one that is quite another is sure after two councils.

        Each of their calls bears witness, and each has been answered by all ranks.
        """
        if hearing.num_calls <= _BRIEF:
            self._was_odd = False
            return []
        latency_s = hearing.usual_latency_s
        was_odd, self._was_odd = self._was_odd, self._is_odd(latency_s)
        num_times = min(hearing.num_calls, _MOST_WITNESSES) if was_odd and self._was_odd else 1
        return [self._estimator.observe_latency(latency_s) for _ in range(num_times)]

    def _observe_transfers(self, records: Sequence[ExchangeRecord], hearing: Hearing) -> list[Change | None]:
        moves = []
        for record, seconds in zip(records, _seconds_of(hearing), strict=False):
            cost, net_s = record.largest.cost, max(seconds - record.largest.cost.overhead_s, 0.0)
            transfer = Observation(rounds=cost.latencies, num_bytes=cost.path_bytes, seconds=net_s)
            moves.append(self._estimator.observe(transfer))
        return moves

    def _adopt(self, answer: list[float]) -> None:
        moved, rhythm, errors = answer[:2], answer[2:6], answer[10:12]
        before = Link(latency_s=answer[6], bandwidth_bps=answer[7])
        link = Link(latency_s=answer[8], bandwidth_bps=answer[9])
        changes = [Change(what=what, before=before, after=link) for what, has in zip(_WHAT, moved, strict=True) if has]
        self._rhythm.adopt(*rhythm)
        estimate = Estimate(link=link, latency_error=errors[0], bandwidth_error=errors[1])
        self.view = NetworkView(estimate=estimate, changes=self.view.changes + tuple(changes))
        if self._advisor is not None:
            self._advisor.adopt(answer[_NUM_ANSWERS:])


def _seconds_of(hearing: Hearing) -> list[float]:
    """Return how long each reported exchange was on the network, by the clock of rank 0."""
    rows = hearing.reports[:, : _MOST_RECORDS * _NUMBERS].reshape(-1, _MOST_RECORDS, _NUMBERS)
    offsets = torch.tensor(hearing.offsets_s, dtype=torch.float64)[:, None]
    begun, ended = rows[..., 0] - offsets, rows[..., 1] - offsets
    seconds = ended.amax(dim=0) - begun.amax(dim=0)
    return [float(value) for value in seconds]
