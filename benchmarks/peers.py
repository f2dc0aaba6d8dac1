"""Peers in a few lines each: SparseLoCo from its paper on torch.distributed, and torch's own post-local SGD.

Models must be equal when a peer is made. ``common`` is the model that all ranks have after their last exchange.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook import PostLocalSGDState, post_localSGD_hook
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.distributed.optim import PostLocalSGDOptimizer
from torch.nn.parallel import DistributedDataParallel

CHUNK, TOP, LEVELS = 4096, 64, 4
"""The largest 64 of each 4,096 entries, in 2 bits."""


class SparseLoCo(torch.optim.Optimizer):
    """H local steps, then an all-gather of the top-k of the difference, quantised (arXiv 2508.15706).

    Messages are bytes: 12-bit offsets in two bytes, 2-bit codes in a quarter, and one scale a chunk.
    """

    def __init__(self, model: nn.Module, inner: torch.optim.Optimizer, steps: int = 30, decay: float = 0.95) -> None:
        super().__init__(inner.param_groups, inner.defaults)
        self.inner, self.model, self.steps, self.decay = inner, model, steps, decay
        self.param_groups, self.state = inner.param_groups, inner.state
        self.common = nn.utils.parameters_to_vector(model.parameters()).detach().clone()
        self.residual = torch.zeros(-(-self.common.numel() // CHUNK) * CHUNK)
        self.num_steps = 0

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> Any:
        """Take a local step, and exchange after every H."""
        self.inner.step(closure)
        self.num_steps += 1
        if self.num_steps % self.steps == 0:
            difference = self.common - nn.utils.parameters_to_vector(self.model.parameters())
            self.residual.mul_(self.decay)[: difference.numel()] += difference
            message = self._message()
            messages = [torch.empty_like(message) for _ in range(dist.get_world_size())]
            dist.all_gather(messages, message)
            mean = torch.stack([_decoded(each, self.residual.numel()) for each in messages]).mean(dim=0)
            self.residual -= _decoded(message, self.residual.numel())
            self.common -= mean[: self.common.numel()]
            nn.utils.vector_to_parameters(self.common.clone(), self.model.parameters())

    def _message(self) -> Tensor:
        chunks = self.residual.view(-1, CHUNK)
        offsets = chunks.abs().topk(TOP, dim=1).indices
        values = chunks.gather(1, offsets)
        scales = values.abs().mean(dim=1, keepdim=True) * 2
        codes = (
            ((values / scales.clamp_min(1e-12) + 1) / 2 * (LEVELS - 1)).round_().clamp_(0, LEVELS - 1).to(torch.uint8)
        )
        quads = codes.view(-1, 4)
        packed = quads[:, 0] | (quads[:, 1] << 2) | (quads[:, 2] << 4) | (quads[:, 3] << 6)
        parts = (offsets.to(torch.int16).flatten().view(torch.uint8), packed, scales.flatten().view(torch.uint8))
        return torch.cat(parts)


def _decoded(message: Tensor, numel: int) -> Tensor:
    num_chunks = numel // CHUNK
    num_offsets = 2 * TOP * num_chunks
    offsets = message[:num_offsets].view(torch.int16).view(-1, TOP).long()
    packed = message[num_offsets : num_offsets + num_chunks * TOP // 4]
    codes = torch.stack([(packed >> shift) & 3 for shift in (0, 2, 4, 6)], dim=1).view(-1, TOP)
    scales = message[num_offsets + packed.numel() :].clone().view(torch.float32).view(-1, 1)
    values = (codes.float() / (LEVELS - 1) * 2 - 1) * scales
    return torch.zeros(num_chunks, CHUNK).scatter_(1, offsets, values).flatten()


class PostLocalSGD(torch.optim.Optimizer):
    """H local steps, then an all-reduce of models: torch's hook, averager and optimizer (arXiv 1808.07217).

    Steps are local from the first one on, since a dense all-reduce in each of the first steps is what a slow network
    cannot carry. torch would average after steps 1, H + 1, ...; this averages after H, 2 H, ... as the others do.
    """

    def __init__(self, ddp: DistributedDataParallel, inner: torch.optim.Optimizer, steps: int = 32) -> None:
        super().__init__(inner.param_groups, inner.defaults)
        self.param_groups, self.state = inner.param_groups, inner.state
        state = PostLocalSGDState(None, None, start_localSGD_iter=0, post_local_gradient_allreduce=False)
        ddp.register_comm_hook(state, post_localSGD_hook)
        self.module, self.steps = ddp.module, steps
        averager = PeriodicModelAverager(period=steps, warmup_steps=steps - 1)
        self.post_local = PostLocalSGDOptimizer(inner, averager)
        self.common = self._model()

    def step(self, closure: Callable[[], float] | None = None) -> Any:
        """Take a local step, and average models after every H."""
        assert closure is None, "torch's optimizer takes none"
        self.post_local.step()
        if self.post_local.averager.step % self.steps == 0:
            self.common = self._model()

    def _model(self) -> Tensor:
        return nn.utils.parameters_to_vector(self.module.parameters()).detach().clone()
