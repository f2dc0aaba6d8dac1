"""Takes over an averaging of other ranks: all agree on the common model, and each carries over what it keeps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from headway.averaging import Averaging
from headway.exchange import BucketLayout, Memories
from headway.local.round_state import NEW, RoundState
from headway.local.staged_buffers import StagedBuffers
from headway.replica import FlatView, make_equal
from headway.tuner import Pace


class _InCommon(NamedTuple):
    """Copies of what all ranks have in common between rounds."""

    model: Tensor
    velocity: Tensor | None
    buffers: dict[str, Tensor]
    unmoved: list[Tensor]

    @property
    def tensors(self) -> list[Tensor]:
        """All of it."""
        velocity = [] if self.velocity is None else [self.velocity]
        return [self.model, *velocity, *self.buffers.values(), *self.unmoved]


class Settling:
    """Settles in where ranks were lost or have come back.

    A rank may be a round ahead of one that lost its connections first. What was sent in a round that no rank has
    applied is taken back; where some have, the others take the common model from one of them, and so does a rank that
    was away.

    Args:
        parameters: The model's parameters.
        layout: Their names and sizes, in the same order.
        buffers: The model's floating-point buffers.
        unmoved: Tensors of the model that training does not average.
    """

    def __init__(
        self, parameters: FlatView, layout: BucketLayout, buffers: StagedBuffers, unmoved: Sequence[Tensor]
    ) -> None:
        self._parameters = parameters
        self._layout = layout
        self._buffers = buffers
        self._unmoved = unmoved

    @torch.no_grad()
    def settle(self, state: RoundState, old: Averaging, new: Averaging) -> None:
        """Change state and model so that the next step of all ranks ends with an exchange by the new averaging.

        **Cost**: two small collectives, and a broadcast of the model if some rank does not have the latest.

        Raises:
            PeerLost: Yet another rank was lost; nothing has changed then.
        """
        executor, residual = new.executor, old.residual
        has_residual = residual is not None or state.residual_before is not None
        rows = executor.all_gather(torch.tensor([state.num_rounds, has_residual, state.num_steps])).tolist()
        all_rounds, have_residuals, all_steps = map(list, zip(*rows, strict=True))
        latest = max(all_rounds)
        source = all_rounds.index(latest)
        in_common = self._copies(state)
        if min(all_rounds) < latest:
            make_equal(executor, in_common.tensors, source)
        place, pace = new.loop.place_of(vars(old.plan))
        numbers = executor.broadcast(torch.tensor([old.averager.step, place, *pace]), source).tolist()
        # Nothing is sent from here on: all of it happens, or nothing.
        kept = self._carry_over(state, residual, in_common, latest)
        if kept is None and any(have_residuals):
            kept = torch.zeros_like(state.common)
        step, place, pace = numbers[0], numbers[1], Pace(*numbers[2:])
        new.averager.resume(step, (self._layout,), Memories((self._layout,), kept), [0.0])
        new.loop.resume(step, place, pace)
        state.difference = state.residual_before = None
        state.num_rounds, state.num_steps = latest, max(all_steps)
        state.pace, state.num_since = pace, pace.local_steps - 1

    def _copies(self, state: RoundState) -> _InCommon:
        return _InCommon(
            state.common.clone(),
            None if state.velocity is None else state.velocity.clone(),
            self._buffers.common_copies(),
            [tensor.detach().clone() for tensor in self._unmoved],
        )

    def _carry_over(
        self, state: RoundState, residual: Tensor | None, in_common: _InCommon, latest: int
    ) -> Tensor | None:
        """Take over what ranks have in common after the latest round; return the residual to go on with."""
        if state.num_rounds == latest:
            if state.difference is None:
                return residual
            state.base.add_(state.moved)
            return state.residual_before
        state.common, state.velocity = in_common.model, in_common.velocity
        self._buffers.take_over(in_common.buffers)
        if state.num_rounds != NEW:
            state.put(state.common + (self._parameters.new() - state.base), self._parameters)
            return residual
        for tensor, value in zip(self._unmoved, in_common.unmoved, strict=True):
            tensor.detach().copy_(value)
        self._buffers.start_again()
        state.put(state.common, self._parameters)
        return None
