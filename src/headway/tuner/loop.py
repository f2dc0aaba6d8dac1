"""The control loop: records go in, plans come out, the same on all ranks.

In a control round every rank reports what it has measured, rank 0 answers (`headway.tuner.answering`), and all ranks
adopt the answer at the same later step. This is the one place that knows the link in force.
"""

from __future__ import annotations

import math
import time
import warnings
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from headway.compress import Shape
from headway.exchange import CostModel, ExchangeRecord, GainCurves, Plan, StepPlan
from headway.kernels.quantizers import BITS
from headway.network import MOST_CHANGES, Change, Link, NetworkView
from headway.tuner.answering import MOST_PAUSE_S, Answerer, Question
from headway.tuner.choosing import Chooser
from headway.tuner.codec import Codec
from headway.tuner.decision import Decision, DecisionLog
from headway.tuner.link_tracker import Tracker
from headway.tuner.messages import (
    MOST_SPANS,
    Answer,
    DecisionAnswer,
    LearningReport,
    Report,
    Span,
)
from headway.tuner.pacing import Pace
from headway.tuner.rounds import MIN_DELAY, RoundSchedule
from headway.tuner.step_reports import StepObserver
from headway.tuner.transport import RoundRequest, Transport

_MOST_DECISIONS = 1000
_MOST_RECORDS = 10_000
_SMOOTHING = 0.2


@dataclass(frozen=True, kw_only=True)
class LoopConfig:
    """What a control loop chooses from, and how often it looks.

    Args:
        first: The plan until another one is chosen.
        plans: The plans to choose from, in the same order on all ranks.
        interval: Steps between thorough control rounds; 0 for none after the first choice.
        is_adaptive: Whether plans are chosen by time and gain: then steps are reported too, and rounds are frequent.
        paces: How often ranks may talk, with local steps: a "step" of this loop is an exchange then. None for a hook.
    """

    first: Plan
    plans: Sequence[Plan]
    interval: int
    is_adaptive: bool
    paces: Sequence[Pace] | None = None

    @property
    def least_delay(self) -> int:
        """The least number of exchanges from the start of a control round until its answer holds."""
        return MIN_DELAY if self.paces is None else 1


class ControlLoop:
    """The `headway.exchange.Controller` of all runs, with a fixed plan or one that is chosen live.

    **Cost**: 8 α in the background, or 40 ms where latency is small, and 400 bytes a rank for report and answer, every
    ``interval`` steps, or every third step while a change is suspected; with an adaptive plan, 6 α and 1.6 kB every
    third step.
    The step before a thorough round has plain dense buckets averaged one after the other, so that each can be timed.

    Args:
        config: The plans to choose from, and how often control rounds are held.
        costs: Predicts costs, on the link that calibration has found.
        transport: Carries the control rounds.
        tracker: Follows the link; used on rank 0.
        chooser: Chooses the plan; used on rank 0. None where there is nothing to choose.
        log: Receives decisions.
        clock: Returns the time in seconds.
    """

    def __init__(
        self,
        config: LoopConfig,
        costs: CostModel,
        transport: Transport,
        tracker: Tracker,
        chooser: Chooser | None = None,
        log: DecisionLog | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._config = config
        self._transport = transport
        self._tracker = tracker
        self._chooser = chooser
        self._log = log
        self._clock = clock
        self._codec = Codec(config.plans)
        self._answer_kind = DecisionAnswer if config.is_adaptive else Answer
        self._schedule = RoundSchedule(
            config.interval or 1, looks_often=config.is_adaptive, least_delay=config.least_delay
        )
        self._answerer = Answerer(
            self._codec, tracker, self._schedule, config.least_delay, chooser, is_adaptive=config.is_adaptive
        )
        self._records: deque[ExchangeRecord] = deque(maxlen=_MOST_RECORDS)
        """Since the last control round."""
        kinds = {plan.exchange: plan.description for plan in config.plans}.values()
        self._code_bits = tuple(bits for bits in BITS if any(bits in kind.bits for kind in kinds))
        self._observer = StepObserver()
        self._decisions: deque[Decision] = deque(maxlen=_MOST_DECISIONS)
        self._under_way: Question | None = None
        self._step = 0
        self._step_s = 0.0
        """The time of a step, near the shorter ones of the latest."""
        self._knows_own_time = False
        """Whether ranks say themselves what their steps take, as those do that take several between exchanges."""
        self._ended_at: float | None = None
        self.current = StepPlan(plan=config.first, costs=costs, awaits_buckets=self._has_choice)
        self.view = NetworkView(estimate=tracker.estimate)

    @property
    def plan(self) -> Plan:
        """The plan in force."""
        return self.current.plan

    @property
    def link(self) -> Link:
        """The link in force: the estimate, followed where it moves by more than 10%, so that choices do not flap."""
        return self.current.costs.link

    @property
    def _has_choice(self) -> bool:
        return len(self._config.plans) > 1 or len(self._config.paces or ()) > 1

    @property
    def is_following(self) -> bool:
        """Whether control rounds follow the link."""
        return self._config.interval > 0

    @property
    def decisions(self) -> tuple[Decision, ...]:
        """The latest decisions, oldest first."""
        return tuple(self._decisions)

    def begin_step(self, step: int) -> None:
        """Adopt an answer that holds from this step on, and start a control round if one is due."""
        self._step = step
        if self._under_way is not None and step >= self._under_way.step + self._under_way.delay:
            self.finish_round()
        if self._config.interval > 0 and self._under_way is None and self._schedule.is_due(step):
            self._schedule.start(step)
            self._start_round(step, self._schedule.delay, is_thorough=self._schedule.is_thorough(step))
        is_measured = self._config.interval > 0 and self._schedule.is_measured(step)
        takes_curves = self._config.is_adaptive and (is_measured or self.current.awaits_buckets)
        self.current = replace(
            self.current, is_measured=is_measured, takes_curves=takes_curves, code_bits=self._code_bits
        )

    def set_buckets(
        self, shapes: Sequence[Shape], arrivals_s: Sequence[float], curves: Sequence[GainCurves] = ()
    ) -> None:
        """Learn the buckets; if there is something to choose, start a control round whose answer holds at once."""
        self.finish_round()
        self.current = replace(
            self.current, awaits_buckets=False, takes_curves=self.current.is_measured and self._config.is_adaptive
        )
        self._observer.curves.extend(curves)
        if not self._knows_own_time:
            self._observer.observe_backward(arrivals_s[-1])
        if self._chooser is not None:
            self._chooser.set_buckets(shapes, arrivals_s)
        if self._has_choice:
            self._start_round(self._step, 0, is_opening=True)

    def await_plan(self) -> None:
        """Wait for the choice among plans that `set_buckets` asks for."""
        if self._under_way is not None and self._under_way.is_opening:
            self.finish_round()

    def observe(self, record: ExchangeRecord, curves: GainCurves | None = None) -> None:
        """Take in what an exchange did."""
        self._records.append(record)
        if curves is not None:
            self._observer.curves.append(curves)

    def observe_own_time(self, own_s: float) -> None:
        """Take in what a step of this rank takes without its exchange, before an exchange; NaN if it is not known."""
        self._knows_own_time = True
        if math.isfinite(own_s):
            self._observer.own_s.append(own_s)

    def observe_agreement(self, moved: float, agreed: float) -> None:
        """Take in how far this rank has moved, and how much of that all ranks agree on: see `StepReport`."""
        self._observer.moved += moved
        self._observer.agreed += agreed

    def end_step(self, last_arrival_s: float) -> None:
        """Take in how long the step took, and let rank 0 begin a control round that waits for the end of the step."""
        before, self._ended_at = self._ended_at, self._clock()
        self._transport.end_step()
        if before is None:
            return
        step_s = self._ended_at - before
        self._step_s = min(step_s, self._step_s + _SMOOTHING * (step_s - self._step_s) if self._step_s else step_s)
        exposed_s = math.nan if self.current.is_measured else self._ended_at - last_arrival_s
        own_s = math.nan if self._knows_own_time else max(last_arrival_s - before, 0.0)
        self._observer.observe_step(own_s, exposed_s)

    def finish_round(self) -> None:
        """Wait for the control round that is under way, if there is one, and adopt its answer; all ranks do so."""
        if self._under_way is not None:
            question, self._under_way = self._under_way, None
            answer = self._codec.decode(self._answer_kind, self._transport.result())
            self._adopt(answer, link=question.followed(answer.estimate.link))

    def place_of(self, fields: Mapping[str, Any] | None) -> tuple[int, Pace]:
        """Return the index of an earlier run's plan among those to choose from, or -1 to keep the present one.

        And its pace, or the present one where that is not to choose from.
        """
        known = vars(Plan()) | dict(fields or {})
        pace = Pace(known.pop("local_steps"), known.pop("delay"))
        bare = {**known, **Pace()._asdict()}
        places = [place for place, plan in enumerate(self._config.plans) if vars(plan) == bare]
        if self._config.is_adaptive and fields is not None and not places:
            warnings.warn(f"the plan of the state is not one to choose from: going on with {self.plan}", stacklevel=4)
        is_known = fields is not None and pace in (self._config.paces or ())
        return places[0] if places and fields is not None else -1, pace if is_known else Pace.of(self.plan)

    def resume(self, step: int, place: int = -1, pace: Pace | None = None, link: Link | None = None) -> None:
        """Continue at another step, between steps; all ranks do so.

        Args:
            step: The next step.
            place: The index of the plan to continue with, from `place_of`; -1 for the present one.
            pace: The pace to continue with; the present one by default.
            link: The link to put in force, if not the present one.
        """
        self._schedule.restart(step)
        self._observer = StepObserver()
        self._records.clear()
        self._ended_at = None
        kept = self.plan if self._config.is_adaptive else self._config.first
        plan = self._config.plans[place] if place >= 0 and self._config.is_adaptive else kept
        plan = replace(plan, **(pace or Pace.of(self.plan))._asdict())
        costs = self.current.costs if link is None else self.current.costs.on(link)
        self.current = StepPlan(plan=plan, costs=costs, awaits_buckets=self._has_choice)

    def abandon(self) -> None:
        """Let no other rank wait for this one: training has failed."""
        self._transport.abandon()

    def close(self, deadline: float | None = None) -> None:
        """Release threads and connections; wait for other ranks until the deadline (`time.monotonic`)."""
        self._transport.close(deadline)

    def _start_round(self, step: int, delay: int, *, is_thorough: bool = False, is_opening: bool = False) -> None:
        records = list(self._records)
        self._records.clear()
        timed = [record for record in records if record.was_alone][-MOST_SPANS:]
        latency_s = self.view.estimate.link.latency_s
        self._under_way = question = Question(
            step=step,
            delay=delay,
            plan=self.plan,
            link=self.link,
            is_opening=is_opening,
            is_following=self.is_following,
            step_s=self._step_s,
            timed=timed,
        )
        self._transport.start(
            RoundRequest(
                report=self._codec.encode(self._report(records, timed)),
                num_answers=self._codec.size(self._answer_kind),
                decide=lambda gathered: self._answerer.answer(question, gathered),
                num_pings=self._tracker.num_pings(is_thorough=is_thorough),
                reconsider=lambda latency_s: self._tracker.reconsider_pings(latency_s, is_thorough=is_thorough),
                pause_s=None if is_opening else min(latency_s, MOST_PAUSE_S),
            )
        )

    def _report(self, records: Sequence[ExchangeRecord], timed: Sequence[ExchangeRecord]) -> Report:
        spans = tuple(Span(record.largest.begun_at, record.largest.ended_at) for record in timed)
        if not self._config.is_adaptive:
            return Report(spans=spans)
        return LearningReport(spans=spans, steps=self._observer.report(records))

    def _adopt(self, answer: Answer, link: Link) -> None:
        """Follow an answer from now on, and put a link in force; all ranks do so at the same step."""
        self._schedule.adopt(answer.rounds)
        after = answer.estimate.link
        flags = (("latency", answer.has_latency_changed), ("bandwidth", answer.has_bandwidth_changed))
        changes = [Change(what=what, before=answer.usual, after=after) for what, is_changed in flags if is_changed]
        self.view = NetworkView(estimate=answer.estimate, changes=(*self.view.changes, *changes)[-MOST_CHANGES:])
        if isinstance(answer, DecisionAnswer) and answer.decision is not None:
            self._note(answer.decision)
        self.current = replace(self.current, plan=answer.plan or self.plan, costs=self.current.costs.on(link))

    def _note(self, decision: Decision) -> None:
        latest = self._answerer.latest  # of rank 0
        front = None if latest is None else latest.front
        decision = replace(decision, front=front)
        self._decisions.append(decision)
        if decision.is_switch:
            self._observer.observe_switch(decision.step)
        if self._log is not None:
            self._log.write(decision)
