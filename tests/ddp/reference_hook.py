"""All-gather top-k with error feedback as a DDP hook in plain torch: what Headway must come to, to the bit."""

from __future__ import annotations

import math

import torch
import torch.distributed as dist
from torch import Tensor
from torch.futures import Future


class ReferenceHook:
    """Keeps all buckets of a step until the last one, and averages the top-k of all gradients together, or each alone.

        G = g + residual;  sent = top-k of G;  average = 1/N sum over ranks of sent;  residual = G - sent

    Of equal entries the first is sent. A step whose average is not finite leaves the residuals as they were, also those
    of buckets that were averaged alone before. Residuals follow the scale of the loss. Where
    parameters may be unused, residuals of those without a gradient take no part.

    Args:
        ratio: The share of entries to send.
        scaler: The scaler of the loss.
        may_skip_parameters: Whether parameters may be unused.
        alone_from: The step from which each bucket is averaged alone.
    """

    def __init__(
        self,
        ratio: float,
        scaler: torch.amp.GradScaler | None = None,
        *,
        may_skip_parameters: bool = False,
        alone_from: float = math.inf,
    ) -> None:
        self._ratio = ratio
        self._scaler = scaler
        self._may_skip_parameters = may_skip_parameters
        self._alone_from = alone_from
        self._step = 0
        self._scale = 1.0
        self._residuals: dict[Tensor, Tensor] = {}
        self._parts: list[tuple[Tensor, Tensor]] = []
        self._waiting: list[tuple[Tensor, Future[Tensor]]] = []
        self._before: dict[Tensor, Tensor] = {}
        self._is_finite = True
        self.num_sent = 0

    def take(self, bucket: dist.GradBucket) -> Future[Tensor]:
        """Take a bucket."""
        future: Future[Tensor] = Future()
        self._waiting.append((bucket.buffer(), future))
        self._parts += zip(bucket.parameters(), bucket.gradients(), strict=True)
        if bucket.index() == 0:
            self._follow_scale()
        if bucket.is_last() or self._step >= self._alone_from:
            self._average()
            self._parts = []
        if bucket.is_last():
            self._end_step()
        return future

    def _end_step(self) -> None:
        if not self._is_finite:
            self._residuals |= self._before
        self._before, self._is_finite = {}, True
        for buffer, waiting in self._waiting:
            waiting.set_result(buffer)
        self._waiting = []
        self._step += 1

    def _follow_scale(self) -> None:
        scale = 1.0 if self._scaler is None else self._scaler.get_scale()
        for residual in self._residuals.values():
            residual.mul_(scale / self._scale)
        self._scale = scale

    def _average(self) -> None:
        gradient = torch.cat([part.flatten() for _, part in self._parts])
        residual = torch.cat([self._usable(parameter, part) for parameter, part in self._parts])
        total = gradient + residual
        k = -(-total.numel() * round(1000 * self._ratio) // 1000)
        places = total.abs().nan_to_num(nan=torch.inf).sort(descending=True, stable=True).indices[:k]
        sent = torch.zeros_like(total).index_copy_(0, places, total[places])
        of_ranks = [torch.empty_like(sent) for _ in range(dist.get_world_size())]
        dist.all_gather(of_ranks, sent)
        average = sum(of_ranks, torch.zeros_like(sent)).div_(len(of_ranks))
        self.num_sent = k
        is_finite = bool(average.isfinite().all())
        self._is_finite &= is_finite
        sizes = [part.numel() for _, part in self._parts]
        parts = zip(self._parts, (total - sent).split(sizes), average.split(sizes), strict=True)
        for (parameter, gradient), kept, mean in parts:
            if is_finite and self._is_used(gradient):
                self._before[parameter], self._residuals[parameter] = self._residuals[parameter], kept.clone()
            gradient.copy_(mean.view_as(gradient))

    def _usable(self, parameter: Tensor, gradient: Tensor) -> Tensor:
        residual = self._residuals.setdefault(parameter, torch.zeros(parameter.numel()))
        return residual if self._is_used(gradient) else torch.zeros_like(residual)

    def _is_used(self, gradient: Tensor) -> bool:
        return not self._may_skip_parameters or bool(gradient.any())


def reference_hook(state: ReferenceHook, bucket: dist.GradBucket) -> Future[Tensor]:
    return state.take(bucket)


# DDP compares annotations with the types themselves, not with their names.
reference_hook.__annotations__ |= {"bucket": vars(dist)["GradBucket"], "return": Future[Tensor]}
