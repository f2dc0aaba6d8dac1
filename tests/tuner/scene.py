"""A run in virtual time: a controller on every rank, a scripted link and scripted gradients, and no sockets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch

from headway.compress import Shape
from headway.exchange import ComputeSpeed, CostModel, ExchangeRecord, Plan, TimedCollective, kind_of
from headway.kernels import GAIN_RATIOS, GainCurve
from headway.network import Calibration, Change, CollectiveCost, Link, Overhead
from headway.tuner import Chooser, Controller, Journal, Objectives, Policy, WarmUp, all_plans, policy_of, ratios_between

GOOD = Link(latency_s=0.001, bandwidth_bps=1e9)
NARROW = Link(latency_s=0.001, bandwidth_bps=4e7)
FAR = Link(latency_s=0.05, bandwidth_bps=4e7)
SHAPES = (Shape((1_000_000,)), Shape((663_370,)))
EXCHANGES = ("dense", "allgather_topk", "star_topk", "var_topk", "quantized")
ARRIVALS_S = (0.0, 0.02)
COUNCIL_STEPS, DELAY = 3, 3
COST = CollectiveCost(latencies=1, path_bytes=1e5, overhead_s=0.0)


def steep(ratio: float) -> float:
    """A gain curve as gradients of a CNN have it."""
    return min(1.0, (ratio / 0.1) ** 0.6)


def share_of(plan: Plan) -> float:
    """Return the share of entries that a plan sends."""
    return plan.ratio if plan.sends_some else 1.0


def _speed_of(plan: Plan) -> ComputeSpeed:
    if plan.sends_some:
        return ComputeSpeed(call_s=2e-4, entry_s=1e-9, sent_s=2e-8)
    return ComputeSpeed(call_s=2e-5, entry_s=2e-10 if plan.exchange == "dense" else 5e-9)


@dataclass
class Scene:
    """Ranks that hold a council every third step."""

    num_ranks: int = 4
    link_at: Callable[[int], Link] = lambda _step: GOOD
    gain_at: Callable[[int, float, float], float] = lambda _step, ratio, _in_force: steep(ratio)
    """What a ratio would send of G at a step, under the residual that the ratio in force has left."""
    own_s: Callable[[int, int], float] = lambda _step, _rank: 0.1
    slowness: Callable[[Plan], float] = lambda _plan: 1.0
    """By how much an exchange takes longer than foretold."""
    policy: str | Policy = "balanced"
    warm_up: int = 0
    told: str = "bandwidth"
    """What every change of the link is noticed as."""
    journal: Journal = field(default_factory=Journal)
    exchanges: tuple[str, ...] = EXCHANGES

    def __post_init__(self) -> None:
        plans = all_plans(ratios_between(0.001, 0.1), self.exchanges)
        speeds = {kind_of(plan): _speed_of(plan) for plan in plans}
        calibration = Calibration(link=self.link_at(0), overhead=Overhead(message_s=2e-4))
        costs = CostModel(self.num_ranks, calibration, speeds)
        falling = WarmUp(min_ratio=0.001, max_ratio=0.1, num_steps=self.warm_up)
        self.all_plans, self.objectives = plans, Objectives(costs, plans, SHAPES, ARRIVALS_S)
        self.chooser = Chooser(plans, policy_of(self.policy), falling, costs)
        others = [Controller(plans) for _ in range(1, self.num_ranks)]
        self.ranks = [Controller(plans, self.chooser, self.journal), *others]
        self.plans: list[list[Plan]] = []
        """Of each step, those of all ranks."""

    def play(self, num_steps: int) -> Scene:
        """Go through some steps."""
        answer, counts_at = [], -1
        for step in range(num_steps):
            if step == 2:
                self._sample(1)
                answers = [rank.open(step, SHAPES, ARRIVALS_S) for rank in self.ranks]
                for rank in self.ranks:
                    rank.adopt(answers[0])
            if step == counts_at:
                for rank in self.ranks:
                    rank.adopt(answer)
            if step > 2 and step % COUNCIL_STEPS == 0:
                self._sample(step)
                reports = [rank.report(self._records(step, number)) for number, rank in enumerate(self.ranks)]
                link, before = self.link_at(step), self.link_at(max(step - COUNCIL_STEPS, 0))
                changes = [Change(what=self.told, before=before, after=link)] if link != before else []
                reported = torch.tensor(reports, dtype=torch.float64)
                answer = self.ranks[0].decide(step + DELAY, reported, link, changes, is_steady=not changes)
                counts_at = step + DELAY
            for number, rank in enumerate(self.ranks):
                rank.note_step(self.own_s(step, number), self._exposed_s(step))
            self.plans.append([rank.plan_of(step) for rank in self.ranks])
        return self

    def _exposed_s(self, step: int) -> float:
        """What the exchange made a step longer by: what was foretold, by default."""
        plan = self.ranks[0].plan_of(step)
        compress_s, sync_s = self.objectives.at(self.link_at(step))
        index = self.all_plans.index(plan)
        return float(compress_s[index] + sync_s[index]) * self.slowness(plan)

    def _sample(self, step: int) -> None:
        in_force = share_of(self.ranks[0].plan_of(step))
        of_gradient, of_total = (
            GainCurve(gains=np.array([self.gain_at(step, ratio, under) for ratio in GAIN_RATIOS]), energy=1.0)
            for under in (1.0, in_force)
        )
        for rank in self.ranks:
            rank.note_curves(of_gradient, of_total)

    def _records(self, step: int, rank: int) -> list[ExchangeRecord]:
        plan = self.ranks[rank].plan_of(step)
        gain = self.gain_at(step, plan.ratio, plan.ratio) if plan.sends_some else 1.0
        return [
            ExchangeRecord(
                step=number,
                bucket=-1,
                exchange=plan.exchange,
                algorithm=plan.algorithm,
                ratio=plan.ratio,
                wire_bytes=1,
                dense_bytes=1,
                rounds=1,
                largest=TimedCollective(begun_at=0.0, ended_at=1.0, cost=COST),
                was_alone=True,
                compress_s=0.0,
                wait_s=0.0,
                transfer_s=0.0,
                gain=gain * (0.6 if plan.exchange in ("star_topk", "var_topk") else 1.0),
            )
            for number in range(max(step - COUNCIL_STEPS, 0), step)
        ]

    @property
    def switches(self) -> list[int]:
        """The steps at which the plan became another one."""
        return [decision.step for decision in self.ranks[0].decisions if decision.is_switch]
