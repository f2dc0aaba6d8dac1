"""How fast the machines of all ranks compute: from the cache, or timed when training starts."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from headway.collectives import NATIVE, Executor
from headway.exchange.compute_speed import ComputeSpeed, measure_speed
from headway.exchange.plan import Form, Plan
from headway.exchange.speed_cache import SpeedCache, worth_keeping
from headway.kernels import warm_up as compile_kernels


def measure_speeds(executor: Executor, plans: Iterable[Plan]) -> dict[Form, ComputeSpeed]:
    """Compile the kernels, and find out how fast every form of plan computes; return the means over ranks.

    What some rank does not find in its cache is timed, on all ranks at the same time: those that share a machine will
    compute at the same time in training too. All ranks get the same result.

    **Cost**: two all-gathers; some 30 ms for each form that is timed, times the ranks that share a core.
    """
    compile_kernels()
    by_form = {plan.form: plan for plan in plans}
    cache = SpeedCache(executor.num_ranks)
    found = cache.read()
    is_known = torch.tensor([form in found for form in by_form])
    all_know = executor.all_gather(is_known, NATIVE).all(dim=0).tolist()
    timed = {}
    for (form, plan), knows in zip(by_form.items(), all_know, strict=True):
        if not knows:
            executor.all_gather(torch.zeros(1), NATIVE)
            timed[form] = measure_speed(plan, executor.num_ranks)
    keepers = worth_keeping(by_form.values())
    if new := {form: speed for form, speed in timed.items() if form in keepers}:
        cache.write(new)
    own = [{**found, **timed}[form] for form in by_form]
    numbers = torch.tensor([[each.call_s, each.entry_s, each.sent_s] for each in own], dtype=torch.float64)
    means = executor.all_gather(numbers, NATIVE).mean(dim=0).tolist()
    return {
        form: ComputeSpeed(call_s=call_s, entry_s=entry_s, sent_s=sent_s)
        for form, (call_s, entry_s, sent_s) in zip(by_form, means, strict=True)
    }
