"""A model and its optimizer as each contender of a benchmark has them, on every rank, from a description in JSON."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

import headway
from headway.train import Samples, cnn
from peer_diloco import DiLoCo
from peers import PostLocalSGD, SparseLoCo

BATCH, LEARNING_RATE, MOMENTUM = 16, 0.05, 0.9
ONE_BUCKET_MB = 1000
PATIENCE_S = 120.0


class Contender:
    """A new model, the same on all ranks, and its optimizer.

    Args:
        described: ``kind``, ``seed`` and, where the kind has them, ``options`` and ``is_corrected``. The kind "alone"
            sends nothing.
    """

    def __init__(self, described: dict[str, Any]) -> None:
        torch.manual_seed(described["seed"])
        kind, options = described["kind"], described.get("options", {})
        self.handle: headway.HookState | headway.local.LocalOptimizer | None = None
        self.bare = cnn()
        self.module: nn.Module = self.bare
        self.optimizer: torch.optim.Optimizer = torch.optim.SGD(
            self.bare.parameters(), lr=LEARNING_RATE, momentum=MOMENTUM
        )
        if kind == "local":
            options = {**options, "config": headway.Adaptive(timeout_s=PATIENCE_S)}
            self.handle = self.optimizer = headway.local.wrap(self.bare, self.optimizer, **options)
        elif kind == "sparseloco":
            self.optimizer = SparseLoCo(self.bare, self.optimizer, **options)
        elif kind == "diloco":
            self.optimizer = DiLoCo(self.bare, self.optimizer, **options)
        elif kind != "alone":
            self._wrap(kind, options, is_corrected=described.get("is_corrected", True))

    def _wrap(self, kind: str, options: dict[str, Any], *, is_corrected: bool) -> None:
        cap_mb = ONE_BUCKET_MB if kind == "powersgd" else 25
        self.module = ddp = DistributedDataParallel(self.bare, bucket_cap_mb=cap_mb, init_sync=False)
        given = self.optimizer if is_corrected else None
        if kind == "fp16":
            ddp.register_comm_hook(None, default_hooks.fp16_compress_hook)
        elif kind == "powersgd":  # with more than one bucket it hangs on Gloo
            state = powerSGD_hook.PowerSGDState(None, start_powerSGD_iter=2, **options)
            ddp.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
        elif kind == "post_local":
            self.optimizer = PostLocalSGD(ddp, self.optimizer, **options)
        elif kind == "fixed":
            self.handle = headway.attach(ddp, headway.Fixed(timeout_s=PATIENCE_S, **options), optimizer=given)
        elif kind == "adaptive":
            self.handle = headway.attach(ddp, headway.Adaptive(timeout_s=PATIENCE_S, **options), optimizer=given)

    def step(self, samples: Samples, generator: torch.Generator) -> float:
        """Take a step; return the loss."""
        images, labels = samples.batch(BATCH, generator)
        self.optimizer.zero_grad()
        loss = nn.functional.cross_entropy(self.module(images), labels)
        loss.backward()
        self.optimizer.step()
        return loss.item()

    def model(self) -> Tensor:
        """Return a copy of the parameters; with local steps, of the model that all ranks have in common."""
        if isinstance(self.handle, headway.local.LocalOptimizer):
            with self.handle.averaged():
                return self._parameters()
        if isinstance(self.optimizer, (SparseLoCo, PostLocalSGD, DiLoCo)):
            return self.optimizer.common.clone()
        return self._parameters()

    def _parameters(self) -> Tensor:
        return nn.utils.parameters_to_vector(self.bare.parameters()).detach().clone()

    def close(self) -> None:
        """End threads and connections. All ranks call it."""
        if self.handle is not None:
            self.handle.close()
        elif isinstance(self.optimizer, DiLoCo):
            self.optimizer.close()
