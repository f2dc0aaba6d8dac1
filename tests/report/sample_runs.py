"""Run directories as training would leave them, written by the real event log, with real decisions and fronts."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from headway.collectives import Collective
from headway.compress import TopK
from headway.exchange import PLAIN, Description, GatherExchange, Plan, register, unregister
from headway.network import Link
from headway.report import VERSION, EventLog
from headway.report.recorder import write_config
from headway.tuner import Decision, Front, pareto_front

NUM_RANKS = 4
NUM_PARAMETERS = 1_663_370
OWN_S = 0.045
DENSE_BYTES = int(2 * (NUM_RANKS - 1) / NUM_RANKS * 4 * NUM_PARAMETERS)
PHASES = {
    0: Link(latency_s=0.001, bandwidth_bps=1e9),
    30: Link(latency_s=0.020, bandwidth_bps=1e8),
    60: Link(latency_s=0.004, bandwidth_bps=2.5e7),
}
"""The emulated network changes twice."""
GOSSIP = "gossip choco, ring, 4 bits"
CAUSES = {
    4: ("start", 0.15),
    10: ("warm-up", 1.2),
    18: ("gain", 1.2),
    33: ("latency", 0.75),
    37: ("bandwidth", 0.6),
    48: ("pace", 0.6),
    63: ("bandwidth", 0.7),
    75: ("gain", 0.45),
}
"""Steps at which the adaptive run compares its plans, the cause, and the weight of the step time."""
ABOUT = {
    "workload": "fashion",
    "model": "cnn",
    "num_ranks": NUM_RANKS,
    "num_parameters": NUM_PARAMETERS,
    "batch_size": 32,
    "network": "c1",
}


class Writer:
    """A training loop without training: it keeps the clock and writes what a recorder would write."""

    def __init__(self, folder: Path, *, method: str | None, num_steps: int, seed: int = 0, **about) -> None:
        about = {**ABOUT, "method": method, "num_steps": num_steps, **about}
        write_config(folder, about)
        self.log = EventLog(folder)
        self.random = np.random.default_rng(seed)
        self.time_s, self.step = 0.0, 0
        self.loss = 2.3
        self.write("start", version=VERSION, headway="0.1.0", started_at="2025-03-01T12:00:00+00:00", **about)

    def write(self, kind: str, **fields) -> None:
        self.log.write(kind, time_s=self.time_s, **fields)

    def train(self, *, step_s: float, progress: float, **fields) -> None:
        self.step += 1
        step_s *= float(self.random.lognormal(0, 0.07))
        self.time_s += step_s
        self.loss += (0.35 - self.loss) * 0.06 * progress
        loss = self.loss * float(self.random.lognormal(0, 0.08))
        common = {"lr": 0.05, "dense_bytes": DENSE_BYTES, "num_exchanges": 1, "compress_s": 0.0, "wait_s": 0.004}
        self.write("step", **{"step": self.step, "step_s": step_s, "loss": loss, **common, **fields})

    def evaluate(self) -> None:
        self.write("evaluation", step=self.step, loss=0.96 * self.loss, accuracy=0.1 + 0.83 * (2.3 - self.loss) / 1.95)

    def write_ranks(self, *, num_steps: int, compress_s: float, transfer_s: float, step_s: float) -> None:
        shares = 1 + 0.5 * np.arange(NUM_RANKS) / NUM_RANKS
        self.write(
            "ranks",
            step=self.step,
            num_steps=num_steps,
            compress_s=list(num_steps * compress_s * shares),
            wait_s=list(num_steps * 0.012 * (2.6 - shares)),
            transfer_s=[num_steps * transfer_s] * NUM_RANKS,
            step_s=[num_steps * step_s] * NUM_RANKS,
        )

    def end(self, reason: str = "finished") -> None:
        self.write("end", step=self.step, reason=reason)
        self.log.close()


def write_adaptive(
    folder: Path, *, num_steps: int = 90, method: str | None = "adaptive", gather: str = "allgather_topk"
) -> Path:
    """Write a run with eight decisions on a network that changes twice; more steps stretch it.

    Its plans are dense, quantized, STAR top-k, and an exchange by all-gather.
    """
    run = Writer(folder, method=method, num_steps=num_steps, seed=1)
    stretch = max(1, num_steps // 90)
    phases = {step * stretch: link for step, link in PHASES.items()}
    causes = {step * stretch: cause for step, cause in CAUSES.items()}
    plan, believed, link_before = PLAIN, PHASES[0], PHASES[0]
    for step in range(num_steps):
        if step in phases:
            link = phases[step]
            run.write("phase", step=step, name=f"phase {list(phases).index(step) + 1}", **vars(link))
        estimate = _blend(believed, link, 0.5 / stretch)
        if step in causes:
            decision = decide(step, *causes[step], plan, link_before, estimate, gather)
            plan, link_before = decision.plan, estimate
            run.write("decision", **decision.as_dict())
        believed = estimate
        compress_s, transfer_s = _cost(plan, link)
        run.train(
            step_s=OWN_S + compress_s + transfer_s,
            progress=_gain(plan),
            exchange=plan.exchange,
            plan=plan.label,
            ratio=plan.sent_ratio,
            gain=_gain(plan) * float(run.random.lognormal(0, 0.03)),
            latency_s=believed.latency_s if step else math.nan,
            bandwidth_bps=believed.bandwidth_bps * float(run.random.lognormal(0, 0.02)) if step else math.nan,
            wire_bytes=_wire_bytes(plan),
            compress_s=compress_s,
            transfer_s=transfer_s,
        )
        _evaluate(run, compress_s, transfer_s, every=15 * stretch)
    run.end()
    return folder


def write_ddp(folder: Path, *, num_steps: int = 90, method: str | None = "ddp") -> Path:
    """Write a run of plain DDP on the same network, without decisions or estimates of the link."""
    run = Writer(folder, method=method, num_steps=num_steps, seed=2)
    for step in range(num_steps):
        if step in PHASES:
            link = PHASES[step]
            run.write("phase", step=step, name=f"phase {list(PHASES).index(step) + 1}", **vars(link))
        _, transfer_s = _cost(PLAIN, link)
        run.train(
            step_s=OWN_S + transfer_s,
            progress=1,
            exchange="dense",
            plan="plain DDP",
            ratio=None,
            gain=None,
            latency_s=None,
            bandwidth_bps=None,
            wire_bytes=DENSE_BYTES,
            transfer_s=transfer_s,
        )
        _evaluate(run, 0.0, transfer_s, every=15)
    run.end()
    return folder


def write_gossip(folder: Path, *, num_steps: int = 90, reason: str | None = "stopped") -> Path:
    """Write a gossip run, with a notice and no plans, link or evaluations. Without a reason it has no end."""
    run = Writer(folder, method="gossip", num_steps=num_steps, seed=3)
    for step in range(num_steps):
        run.train(step_s=0.11, progress=0.8, exchange=GOSSIP, plan=GOSSIP, wire_bytes=DENSE_BYTES // 12, ratio=None,
                  gain=None, latency_s=None, bandwidth_bps=None, transfer_s=0.06, compress_s=0.006)  # fmt: skip
        if step == 20:
            run.write("notice", step=step, text="the step of gossip is 0.31 from now on")
    if reason is not None:
        run.end(reason)
    run.log.close()
    return folder


@contextmanager
def registered_exchange(*, name: str, label: str, hue: float | None) -> Iterator[None]:
    """Register a new exchange, for as long as the context lasts."""

    class NewExchange(GatherExchange):
        description = Description(
            name=name,
            label=label,
            summary="a top-k of my own",
            collectives=(Collective.ALL_GATHER,),
            value_formats=("fp32", "int8"),
            hue=hue,
        )

        def compressor(self, shape):
            return TopK(self.plan.ratio, self.plan.values)

    register(NewExchange)
    try:
        yield
    finally:
        unregister(name)


def _evaluate(run: Writer, compress_s: float, transfer_s: float, *, every: int) -> None:
    if run.step % every == 0:
        run.evaluate()
        step_s = OWN_S + compress_s + transfer_s
        run.write_ranks(num_steps=every, compress_s=compress_s, transfer_s=transfer_s - 0.01, step_s=step_s)


def _blend(a: Link, b: Link, share: float) -> Link:
    mixed = {name: value ** (1 - share) * getattr(b, name) ** share for name, value in vars(a).items()}
    return Link(**mixed)


def _candidates(gather: str) -> list[Plan]:
    ratios = np.geomspace(0.001, 0.1, 14)
    plans = [PLAIN, Plan(exchange="quantized", algorithm="ring", fusion="bucket")]
    for ratio in ratios:
        for values in ("fp32", "int8"):
            plans.append(Plan(exchange=gather, ratio=float(ratio), algorithm="ring", values=values, fusion="step"))
        plans.append(Plan(exchange="star_topk", ratio=float(ratio), algorithm="halving_doubling", fusion="step"))
        plans.append(Plan(exchange="star_topk", ratio=float(ratio), algorithm="ring", fusion="bucket"))
    return plans


def _wire_bytes(plan: Plan) -> int:
    if not plan.description.uses_ratio:
        return DENSE_BYTES if plan.exchange == "dense" else DENSE_BYTES // 3
    each = 1.4 + (1 if plan.values == "int8" else 4)
    spread = 2.1 if plan.exchange == "star_topk" else NUM_RANKS - 1
    return int(NUM_PARAMETERS * plan.ratio * each * spread)


def _cost(plan: Plan, link: Link) -> tuple[float, float]:
    rounds = 3 if plan.fusion == "step" else 8
    hidden = 0.02 if plan.fusion == "bucket" else 0.0
    compress_s = 0.0 if plan.exchange == "dense" else 0.004 + 0.03 * plan.ratio + 0.004 * (plan.values == "int8")
    sync_s = rounds * link.latency_s + _wire_bytes(plan) * 8 / link.bandwidth_bps
    return compress_s, max(sync_s - hidden, 0.002) + 0.002 * (plan.exchange == "star_topk")


def _gain(plan: Plan) -> float:
    if not plan.description.uses_ratio:
        return 1.0 if plan.exchange == "dense" else 0.985
    return (
        min(0.97, (plan.ratio / 0.14) ** 0.22) - 0.01 * (plan.values == "int8") - 0.03 * (plan.exchange != "star_topk")
    )


def decide(step: int, cause: str, weight: float, before: Plan, link_before: Link, link: Link, gather: str) -> Decision:
    plans = _candidates(gather)
    costs = np.array([_cost(plan, link) for plan in plans])
    gains = np.array([_gain(plan) * (1 - 0.08 * min(step / 90, 1) * (plan.ratio < 0.01)) for plan in plans])
    kept = pareto_front(np.column_stack([costs, 1 / gains]))
    front = Front([plans[i] for i in kept], costs[kept, 0], costs[kept, 1], gains[kept], OWN_S)
    best = int(np.argmax(front.gain / front.step_s**weight))
    return Decision(
        step=step, cause=cause, before=before, plan=front.plans[best], link_before=link_before, link=link,
        own_s=OWN_S, step_s=float(front.step_s[best]), step_s_before=OWN_S + sum(_cost(before, link)),
        gain=float(front.gain[best]), gain_before=_gain(before), promised_gain=math.nan, realised_gain=_gain(before),
        slope=3.0, gain_curve=(0.2, 0.5, math.nan), front=front,
    )  # fmt: skip
