"""The state of averaging between steps, as plain data that ``torch.load(weights_only=True)`` reads."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

from headway.exchange import Averager, BucketLayout, BufferAverager, Layout, Memories, parameters_of
from headway.kernels import Momentum
from headway.kernels.threshold import Threshold
from headway.network import Link
from headway.tuner import ControlLoop, Pace

FORMAT = 1


def save(averager: Averager, loop: ControlLoop, buffers: BufferAverager) -> dict[str, Any]:
    """Return the state: memories, thresholds, step, buckets, plan, and the link by which "auto" was decided.

    The buffers of the model are saved with the model; here is only their last average.

    Random numbers need no more than the seed and the step. Tensors are copies.
    """
    channel, memories = averager.channel, averager.memories
    residual = None if memories is None else memories.residual
    velocity = None if memories is None or memories.velocity is None else memories.velocity.values
    return {
        "format": FORMAT,
        "num_ranks": channel.num_ranks,
        "rank": channel.rank,
        "step": averager.step,
        "seed": averager.seed,
        "link": [loop.link.latency_s, loop.link.bandwidth_bps],
        "arrivals_s": averager.arrivals_s,
        "buckets": _as_data(averager.layout),
        "next_buckets": _as_data(averager.tracker.settled),
        "residual": _copy_of(residual),
        "velocity": _copy_of(velocity),
        "loss_scale": averager.loss_scale,
        "thresholds": {} if memories is None else {k: asdict(t) for k, t in memories.thresholds().items()},
        "plan": asdict(loop.plan),
        "buffers": buffers.last,
    }


def load(
    averager: Averager,
    loop: ControlLoop,
    buffers: BufferAverager,
    state: Mapping[str, Any],
    parameters: Mapping[str, int],
    *,
    strict: bool,
    link: Link | None = None,
) -> None:
    """Continue from a state; raise `ValueError` if it does not fit, or with ``strict=False`` warn and drop residuals.

    If any rank's state does not fit, all ranks reject theirs.

    Args:
        averager: Takes step, buckets and residuals over.
        loop: Takes plan and link over.
        buffers: Takes the last average of the buffers over.
        state: From `save` on the same rank.
        parameters: The sizes of the model's parameters by name.
        strict: Whether a state that does not fit is an error.
        link: The link to use instead of the saved one.
    """
    try:
        reason = _misfit(averager, state, parameters)
    except (AttributeError, KeyError, TypeError) as error:
        reason = f"the state is damaged ({type(error).__name__}: {error})"
    readable = reason is None or (isinstance(state, Mapping) and state.get("format") == FORMAT and "step" in state)
    misfits, unreadable = _where_it_does_not_fit(averager, fits=reason is None, is_readable=readable)
    if reason is None and misfits:
        reason = f"the state of rank {misfits[0]} does not fit"
    if reason is not None and (strict or unreadable):
        advice = "" if unreadable else "; strict=False loads the step, and drops the residuals"
        raise ValueError(f"{reason}{advice}")
    if reason is not None:
        warnings.warn(f"{reason}: residuals are dropped", stacklevel=3)
        averager.resume(int(state["step"]), None, None, None)
    else:
        link = link or Link(latency_s=state["link"][0], bandwidth_bps=state["link"][1])
        layout = _layout_of(state["buckets"])
        averager.resume(
            int(state["step"]),
            layout,
            _memories_of(state, layout, averager.momentum),
            state["arrivals_s"],
            settled=_layout_of(state.get("next_buckets")),
            loss_scale=state.get("loss_scale"),
        )
    place, pace = loop.place_of(state.get("plan"))
    of_rank_0 = averager.channel.executor.broadcast(torch.tensor([place, *pace]), 0).tolist()
    loop.resume(averager.step, of_rank_0[0], Pace(*of_rank_0[1:]), link)
    buffers.resume(state.get("buffers"), averager.channel)


def _where_it_does_not_fit(averager: Averager, *, fits: bool, is_readable: bool) -> tuple[list[int], list[int]]:
    """Return the ranks whose state does not fit, and those whose state cannot even be read; the same on all ranks."""
    rows = averager.channel.executor.all_gather(torch.tensor([fits, is_readable]), "native").tolist()
    return (
        [rank for rank, (fits, _) in enumerate(rows) if not fits],
        [rank for rank, (_, is_readable) in enumerate(rows) if not is_readable],
    )


def _copy_of(flat: Tensor | None) -> Tensor | None:
    return None if flat is None else flat.detach().cpu().clone()


def _memories_of(state: Mapping[str, Any], layout: Layout | None, momentum: Momentum | None) -> Memories | None:
    residual, velocity = state["residual"], state.get("velocity")
    if layout is None or (residual is None and momentum is None):
        return None
    memories = Memories.at_rest(layout, momentum)
    if memories.velocity is not None and velocity is not None:
        memories.velocity.values.copy_(velocity)
    if residual is not None:
        memories = Memories(layout, residual.clone(), memories.velocity)
    memories.set_thresholds({name: Threshold(**fields) for name, fields in state["thresholds"].items()})
    return memories


def _as_data(layout: Layout | None) -> list[dict[str, Any]] | None:
    return None if layout is None else [asdict(bucket) for bucket in layout]


def _layout_of(buckets: Sequence[Mapping[str, Any]] | None) -> Layout | None:
    if buckets is None:
        return None
    return tuple(
        BucketLayout(tuple(bucket["names"]), tuple(bucket["numels"]), bucket.get("entry_bytes", 4))
        for bucket in buckets
    )


def _misfit(averager: Averager, state: Mapping[str, Any], parameters: Mapping[str, int]) -> str | None:
    """Return why a state does not fit this run, or None if it does."""
    if state.get("format") != FORMAT:
        return f"the state has format {state.get('format')!r}, but this version reads {FORMAT}"
    channel = averager.channel
    if state["num_ranks"] != channel.num_ranks:
        return f"the state is of {state['num_ranks']} ranks, but there are {channel.num_ranks}"
    if state["rank"] != channel.rank:
        return f"the state is that of rank {state['rank']}, but this is rank {channel.rank}: each rank loads its own"
    if state["seed"] != averager.seed:
        return f"the state was made with seed {state['seed']}, but this run has {averager.seed}"
    layout = _layout_of(state["buckets"])
    if layout is not None and parameters and parameters_of(layout) != dict(parameters):
        theirs = parameters_of(layout)
        differing = sorted(set(theirs.items()) ^ set(parameters.items()))[:1]
        return f"the state is of another model: parameter {differing[0][0]!r} differs"
    scale = state.get("loss_scale")
    if scale is not None and not 0 < scale < math.inf:
        return f"the loss scale of the state is {scale}, but must be finite and above 0"
    velocity = state.get("velocity")
    if velocity is not None and averager.momentum is None:
        return "the state has the momentum of an optimizer: attach with optimizer= as the run that saved it did"
    return _misfit_of("residual", state["residual"], layout) or _misfit_of("velocity", velocity, layout)


def _misfit_of(name: str, flat: Tensor | None, layout: Layout | None) -> str | None:
    if flat is None:
        return None
    if layout is not None and flat.numel() != sum(parameters_of(layout).values()):
        return f"the {name} does not have the size of the buckets"
    if flat.dtype != torch.float32:
        return f"the {name} is {flat.dtype}, but must be float32"
    if not bool(flat.isfinite().all()):  # it would make every step overflow, and every undo would put it back
        return f"the {name} holds Inf or NaN"
    return None
