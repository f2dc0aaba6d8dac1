"""What a hook keeps between steps, as plain data that ``torch.load(weights_only=True)`` reads."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import torch

from headway.exchange import Averager, BucketLayout, Layout, Memories, parameters_of
from headway.kernels.threshold import Threshold
from headway.network import Link

FORMAT = 1


def save(averager: Averager) -> dict[str, Any]:
    """Return the state: residuals, thresholds, step, buckets, and what "auto" was decided by.

    Random numbers need no more than the seed and the step. Tensors are copies.
    """
    channel, memories = averager.channel, averager.memories
    residual = None if memories is None or memories.residual is None else memories.residual.detach().cpu().clone()
    return {
        "format": FORMAT,
        "num_ranks": channel.num_ranks,
        "rank": channel.rank,
        "step": averager.step,
        "seed": averager.seed,
        "link": [channel.link.latency_s, channel.link.bandwidth_bps],
        "arrivals_s": averager.arrivals_s,
        "buckets": None if averager.layout is None else [asdict(bucket) for bucket in averager.layout],
        "residual": residual,
        "thresholds": {} if memories is None else {k: asdict(t) for k, t in memories.thresholds().items()},
    }


def load(averager: Averager, state: Mapping[str, Any], parameters: Mapping[str, int], *, strict: bool) -> None:
    """Take a state over; raise `ValueError` where it does not fit, or with ``strict=False`` warn and drop residuals.

    All ranks do the same: one whose state does not fit decides for all.
    """
    try:
        reason = _misfit(averager, state, parameters)
    except (AttributeError, KeyError, TypeError) as error:
        reason = f"the state is damaged ({type(error).__name__}: {error})"
    readable = reason is None or (isinstance(state, Mapping) and state.get("format") == FORMAT and "step" in state)
    odd = _whose_does_not_fit(averager, reason is None)
    if reason is None and odd:
        reason = f"the state of rank {odd[0]} does not fit"
    if reason is not None and (strict or not readable):
        advice = "; strict=False loads the step, and drops the residuals" if readable else ""
        raise ValueError(f"{reason}{advice}")
    if reason is not None:
        warnings.warn(f"{reason}: residuals are dropped", stacklevel=3)
        averager.resume(int(state["step"]), None, None, None)
        return
    latency_s, bandwidth_bps = state["link"]
    averager.channel.link = Link(latency_s=latency_s, bandwidth_bps=bandwidth_bps)
    layout = _layout_of(state)
    averager.resume(int(state["step"]), layout, _memories_of(state, layout), state["arrivals_s"])


def _whose_does_not_fit(averager: Averager, fits: bool) -> list[int]:
    everyone = averager.channel.executor.all_gather(torch.tensor([fits]), "native").flatten().tolist()
    return [rank for rank, fits in enumerate(everyone) if not fits]


def _memories_of(state: Mapping[str, Any], layout: Layout | None) -> Memories | None:
    residual = state["residual"]
    if layout is None or residual is None:
        return None
    memories = Memories(layout, residual.clone())
    memories.set_thresholds({name: Threshold(**fields) for name, fields in state["thresholds"].items()})
    return memories


def _layout_of(state: Mapping[str, Any]) -> Layout | None:
    if state["buckets"] is None:
        return None
    return tuple(BucketLayout(tuple(bucket["names"]), tuple(bucket["numels"])) for bucket in state["buckets"])


def _misfit(averager: Averager, state: Mapping[str, Any], parameters: Mapping[str, int]) -> str | None:
    """Say why a state is not for this hook."""
    if state.get("format") != FORMAT:
        return f"the state has format {state.get('format')!r}, but this version reads {FORMAT}"
    channel = averager.channel
    if state["num_ranks"] != channel.num_ranks:
        return f"the state is of {state['num_ranks']} ranks, but there are {channel.num_ranks}"
    if state["rank"] != channel.rank:
        return f"the state is that of rank {state['rank']}, but this is rank {channel.rank}: each rank loads its own"
    if state["seed"] != averager.seed:
        return f"the state was made with seed {state['seed']}, but this run has {averager.seed}"
    layout = _layout_of(state)
    if layout is not None and parameters and parameters_of(layout) != dict(parameters):
        theirs = parameters_of(layout)
        differing = sorted(set(theirs.items()) ^ set(parameters.items()))[:1]
        return f"the state is of another model: parameter {differing[0][0]!r} differs"
    residual = state["residual"]
    if layout is not None and residual is not None and residual.numel() != sum(parameters_of(layout).values()):
        return "the residual does not have the size of the buckets"
    if residual is not None and residual.dtype != torch.float32:
        return f"the residual is {residual.dtype}, but must be float32"
    return None
