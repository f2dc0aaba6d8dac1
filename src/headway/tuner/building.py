"""Makes the control loop that a configuration asks for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch.distributed as dist

from headway.collectives import Executor, Members
from headway.exchange import PLAIN, CostModel, Plan, measure_speeds
from headway.network import Calibration, Link, calibrate
from headway.tuner.adaptive import AdaptiveChooser
from headway.tuner.choosing import Chooser, FusionChooser
from headway.tuner.config import Adaptive, Fixed
from headway.tuner.decision import DecisionLog
from headway.tuner.link_tracker import GivenLink, LinkTracker
from headway.tuner.loop import ControlLoop, LoopConfig
from headway.tuner.pacing import Pace, Pacing
from headway.tuner.policies import policy_of
from headway.tuner.transport import BackgroundTransport, InlineTransport, Transport

_UNKNOWN_LINK = Link(latency_s=0.0, bandwidth_bps=1e11)


def make_loop(
    config: Fixed | Adaptive,
    executor: Executor,
    group: dist.ProcessGroup | Members | None = None,
    log: DecisionLog | None = None,
    *,
    is_corrected: bool = False,
    paces: Sequence[Pace] | None = None,
    costs: CostModel | None = None,
) -> ControlLoop:
    """Measure network and machine as far as needed, and return the control loop. All ranks call it.

    Args:
        config: The configuration, the same on all ranks.
        executor: Runs the exchanges; used for measuring, and for the first choice of a fixed plan.
        group: The process group whose ranks take part; control rounds get connections of their own.
        log: Receives the decisions, on rank 0.
        is_corrected: Whether momentum is corrected.
        paces: How often ranks may talk, with local steps; if there are several, one is chosen live, also for a fixed
            exchange. None for a hook.
        costs: What an earlier loop of these ranks, and perhaps of others, has measured: nothing is measured then. On
            all ranks or none.
    """
    given_link = config.link if isinstance(config, Fixed) else None
    is_followed = executor.num_ranks > 1 and config.interval > 0 and given_link is None
    costs = _measure_costs(config, executor) if costs is None else replace(costs, num_ranks=executor.num_ranks)
    first = config.plan if isinstance(config, Fixed) else PLAIN
    plans = config.plans
    if paces is not None:
        plans = _in_one(plans)
        first = plans[0] if isinstance(config, Fixed) else PLAIN
    has_paces = paces is not None and len(paces) > 1
    loop_config = LoopConfig(
        first=first if paces is None else replace(first, **paces[0]._asdict()),
        plans=plans,
        interval=config.interval if is_followed else 0,
        is_adaptive=isinstance(config, Adaptive) or has_paces,
        paces=paces,
    )
    transport: Transport = InlineTransport(executor)
    if is_followed:
        own = Executor(group, timeout_s=config.timeout_s, debug=config.debug, cpu_only=True, beside=executor)
        transport = BackgroundTransport(own, executor.patience_s)
    has_choice = executor.rank == 0 and (len(plans) > 1 or has_paces)
    chooser = _make_chooser(config, plans, costs, paces, is_corrected=is_corrected) if has_choice else None
    tracker = LinkTracker(costs.calibration) if is_followed else GivenLink(costs.link)
    return ControlLoop(loop_config, costs, transport, tracker, chooser, log)


def _in_one(plans: Sequence[Plan]) -> list[Plan]:
    """Return the plans for one bucket with all parameters, where fusions are the same."""
    return [plan for plan in plans if plan.fusion == PLAIN.fusion] or list(plans)


def _make_chooser(
    config: Fixed | Adaptive,
    plans: Sequence[Plan],
    costs: CostModel,
    paces: Sequence[Pace] | None,
    *,
    is_corrected: bool,
) -> Chooser:
    if isinstance(config, Fixed) and len(paces or ()) <= 1:
        return FusionChooser(plans, costs)
    chosen = config if isinstance(config, Adaptive) else Adaptive(warm_up=0)
    policy, warm_up = policy_of(chosen.policy), chosen.warm_up_rule
    return AdaptiveChooser(plans, policy, warm_up, costs, is_corrected=is_corrected, pacing=Pacing(paces))


def _measure_costs(config: Fixed | Adaptive, executor: Executor) -> CostModel:
    """Return the cost model, with the link as far as it matters."""
    num_ranks = executor.num_ranks
    if isinstance(config, Adaptive):
        if num_ranks == 1:
            return CostModel(1, Calibration(link=_UNKNOWN_LINK))
        return CostModel(num_ranks, calibrate(executor), measure_speeds(executor, config.plans))
    calibration = Calibration(link=config.link or _UNKNOWN_LINK)
    if config.link is None and (config.plan.needs_link or config.interval > 0):
        calibration = calibrate(executor)
    return CostModel(num_ranks, calibration)
