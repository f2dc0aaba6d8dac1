"""A run in virtual time: the control loop of every rank, a scripted link and scripted gradients, and no sockets."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from headway.collectives import RankReports
from headway.compress import Shape
from headway.exchange import (
    PLAIN,
    CodeGain,
    ComputeSpeed,
    CostModel,
    ExchangeRecord,
    GainCurves,
    Plan,
    TimedCollective,
    exchange_of,
)
from headway.kernels import GAIN_RATIOS, GainCurve
from headway.network import Calibration, Change, Estimate, Link, Overhead
from headway.tuner import (
    AdaptiveChooser,
    ControlLoop,
    DecisionLog,
    LinkTracker,
    LoopConfig,
    Objectives,
    Policy,
    RoundRequest,
    WarmUp,
    all_plans,
    policy_of,
    ratios_between,
)

GOOD = Link(latency_s=0.001, bandwidth_bps=1e9)
NARROW = Link(latency_s=0.001, bandwidth_bps=1e7)
FAR = Link(latency_s=0.05, bandwidth_bps=1e7)
SHAPES = (Shape((1_000_000,)), Shape((663_370,)))
ARRIVALS_S = (0.0, 0.02)
EXCHANGES = ("dense", "allgather_topk", "star_topk", "var_topk", "quantized")
CLOCKS_APART_S = 1000.0


def steep(ratio: float) -> float:
    """A gain curve like that of a CNN's gradients."""
    return min(1.0, (ratio / 0.1) ** 0.6)


def _speed_of(plan: Plan) -> ComputeSpeed:
    if plan.description.uses_ratio:
        return ComputeSpeed(call_s=2e-4, entry_s=1e-9, sent_s=2e-8)
    return ComputeSpeed(call_s=2e-5, entry_s=2e-10 if plan.exchange == "dense" else 5e-9)


@dataclass
class VirtualRound:
    """A control round of all ranks, held when the first answer is asked for."""

    held_at: int
    requests: dict[int, RoundRequest] = field(default_factory=dict)
    answer: torch.Tensor | None = None

    def hold(self, run: VirtualRun) -> torch.Tensor:
        if self.answer is None:
            assert len(self.requests) == run.num_ranks, "a rank did not join the control round"
            run.held_at = self.held_at
            first, latency_s = self.requests[0], run.link_at(self.held_at).latency_s
            self.answer = first.decide(
                RankReports(
                    reports=torch.stack([self.requests[rank].report for rank in range(run.num_ranks)]),
                    latencies_s=[0.0] + [latency_s] * (run.num_ranks - 1),
                    offsets_s=[CLOCKS_APART_S * rank for rank in range(run.num_ranks)],
                    num_pings=first.reconsider(latency_s) or first.num_pings,
                )
            )
            assert self.answer.numel() == first.num_answers
        return self.answer


@dataclass
class VirtualTransport:
    """The part of one rank in the control rounds."""

    rank: int
    run: VirtualRun
    num_started: int = 0

    def start(self, request: RoundRequest) -> None:
        if self.num_started == len(self.run.rounds):
            self.run.rounds.append(VirtualRound(self.run.step))
        round_ = self.run.rounds[self.num_started]
        assert round_.held_at == self.run.step, "ranks hold a control round at different steps"
        round_.requests[self.rank] = request
        self.num_started += 1

    def end_step(self) -> None: ...

    def result(self) -> torch.Tensor:
        return self.run.rounds[self.num_started - 1].hold(self.run)

    def abandon(self) -> None: ...

    def close(self, deadline: float | None = None) -> None: ...


class ScriptedTracker:
    """Knows the link at once; every move of it is detected as a change of ``detected``."""

    is_suspicious = False

    def __init__(self, run: VirtualRun) -> None:
        self._run = run
        self._link = run.link_at(0)
        self.usual = self._link

    @property
    def estimate(self) -> Estimate:
        return Estimate(link=self._link, latency_error=0.1, bandwidth_error=0.1)

    def num_pings(self, *, is_thorough: bool) -> int:
        return 3 if is_thorough else 2

    def reconsider_pings(self, latency_s: float, *, is_thorough: bool) -> int:
        del latency_s, is_thorough
        return 0

    def observe(self, records, reports: Sequence, gathered) -> list[Change]:
        del records, gathered
        assert len(reports) == self._run.num_ranks
        self.usual, self._link = self._link, self._run.link_at(self._run.held_at)
        has_moved = self._link.has_moved(self.usual)
        return [Change(what=self._run.detected, before=self.usual, after=self._link)] if has_moved else []


@dataclass
class VirtualRun:
    """Ranks that train on a network which follows a script."""

    num_ranks: int = 4
    link_at: Callable[[int], Link] = lambda _step: GOOD
    gain_at: Callable[[int, float, float], float] = lambda _step, ratio, _in_force: steep(ratio)
    """The gain of a ratio at a step, under the residual that the ratio in force has left."""
    code_gain: Callable[[int], float] = lambda _bits: 1.0
    """What codes of so many bits preserve."""
    own_s: Callable[[int, int], float] = lambda _step, _rank: 0.1
    slowness: Callable[[Plan], float] = lambda _plan: 1.0
    """How many times longer than predicted an exchange takes."""
    policy: str | Policy = "balanced"
    warm_up: float = 0.0
    detected: str = "bandwidth"
    log: DecisionLog = field(default_factory=DecisionLog)
    exchanges: tuple[str, ...] = EXCHANGES
    interval: int = 3
    knows_link: bool = True
    """Whether the link is known at once; otherwise it is estimated from the transfers."""
    jitter: float = 0.0
    """Transfers take longer by up to this share, at random."""

    def __post_init__(self) -> None:
        self._random = random.Random(0)
        self.step = self.held_at = 0
        self.now = 0.0
        self.knows_buckets = False
        plans = all_plans(ratios_between(0.001, 0.1), self.exchanges)
        calibration = Calibration(link=self.link_at(0), overhead=Overhead(message_s=2e-4))
        self.costs = CostModel(self.num_ranks, calibration, {plan.form: _speed_of(plan) for plan in plans})
        self.objectives, self.all_plans = Objectives(self.costs, plans, SHAPES, ARRIVALS_S), plans
        rule = WarmUp(max_ratio=0.1, strength=self.warm_up)
        self.chooser = AdaptiveChooser(plans, policy_of(self.policy), rule, self.costs)
        config = LoopConfig(first=PLAIN, plans=plans, interval=self.interval, is_adaptive=True)
        self.rounds: list[VirtualRound] = []
        self.ranks = [
            ControlLoop(
                config,
                self.costs,
                VirtualTransport(rank, self),
                ScriptedTracker(self) if self.knows_link else LinkTracker(calibration),
                self.chooser if rank == 0 else None,
                self.log if rank == 0 else None,
                clock=lambda rank=rank: self.now + CLOCKS_APART_S * rank,
            )
            for rank in range(self.num_ranks)
        ]
        self.plans: list[list[Plan]] = []
        """The plans of all ranks at each step."""

    def play(self, num_steps: int) -> VirtualRun:
        """Take some steps."""
        for _ in range(num_steps):
            self._take_step()
            self.step += 1
        return self

    def _take_step(self) -> None:
        for rank in self.ranks:
            rank.begin_step(self.step)
        if not self.knows_buckets:
            self.knows_buckets = True
            for number, rank in enumerate(self.ranks):
                curves = [self._curves(PLAIN, rank.current.code_bits)] if rank.current.takes_curves else []
                backward_s = self.own_s(self.step, number) / 1.5
                arrivals_s = [backward_s * arrival_s / ARRIVALS_S[-1] for arrival_s in ARRIVALS_S]
                rank.set_buckets(SHAPES, arrivals_s, curves)
            for rank in self.ranks:
                rank.await_plan()
        self.plans.append([rank.plan for rank in self.ranks])
        plan = self.plans[-1][0]
        self.now += max(self.own_s(self.step, rank) for rank in range(self.num_ranks))
        last_arrival, exposed_s = self.now, self._exposed_s(plan)
        record_at = self._records(plan)
        self.now += exposed_s
        for number, rank in enumerate(self.ranks):
            offset_s = CLOCKS_APART_S * number
            curves = self._curves(plan, rank.current.code_bits) if rank.current.takes_curves else None
            for record in record_at(offset_s):
                rank.observe(record, curves)
                curves = None
            rank.end_step(last_arrival + offset_s)

    def _exposed_s(self, plan: Plan) -> float:
        compress_s, sync_s = self.objectives.at(self.link_at(self.step))
        place = self.all_plans.index(plan)
        return float(compress_s[place] + sync_s[place]) * self.slowness(plan)

    def _curves(self, plan: Plan, code_bits: Sequence[int]) -> GainCurves:
        return GainCurves(
            *(
                GainCurve(gains=np.array([self.gain_at(self.step, c, under) for c in GAIN_RATIOS]), energy=1.0)
                for under in (1.0, plan.sent_ratio)
            ),
            tuple(CodeGain(bits, self.code_gain(bits)) for bits in code_bits),
        )

    def _records(self, plan: Plan) -> Callable[[float], list[ExchangeRecord]]:
        """Return what makes a rank's records of the step, given how far its clock is ahead."""
        link = self.link_at(self.step)
        gain = self.gain_at(self.step, plan.ratio, plan.ratio) if plan.description.uses_ratio else 1.0
        gain = self.code_gain(plan.bits) if plan.description.bits else gain
        model = self.ranks[0].current.costs
        timed = []
        for shape in SHAPES:
            costs = [model.of_traffic(traffic) for traffic in exchange_of(plan).traffic(shape, model.num_ranks)]
            largest = max(costs, key=lambda cost: cost.path_bytes)
            noise = 1 + self._random.uniform(0, self.jitter)
            timed.append((self.now, self.now + largest.seconds(link) * self.slowness(plan) * noise, largest))

        def records(offset_s: float) -> list[ExchangeRecord]:
            return [
                ExchangeRecord(
                    step=self.step,
                    bucket=bucket,
                    exchange=plan.exchange,
                    algorithm=plan.algorithm,
                    ratio=plan.sent_ratio,
                    wire_bytes=1,
                    dense_bytes=1,
                    rounds=1,
                    largest=TimedCollective(begun_at=begun + offset_s, ended_at=ended + offset_s, cost=cost),
                    was_alone=True,
                    compress_s=0.0,
                    wait_s=0.0,
                    transfer_s=ended - begun,
                    gain=gain * (0.6 if plan.description.takes_turns else 1.0),
                )
                for bucket, (begun, ended, cost) in enumerate(timed)
            ]

        return records

    @property
    def switches(self) -> list[int]:
        """The steps at which the plan changed."""
        return [decision.step for decision in self.ranks[0].decisions if decision.is_switch]
