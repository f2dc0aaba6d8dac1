"""Averages a model's floating-point buffers, such as the statistics of batch norm, along with its gradients.

DDP instead broadcasts rank 0's buffers before every forward pass: a collective of its own, whose latency nothing hides,
and the other ranks' statistics are never used. Here every rank keeps its own, and every so many steps all of them are
replaced by their average. It travels with the message of a gradient where that is cheaper than a collective of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from headway.collectives import AUTO, Collective
from headway.exchange.base import Channel, Traffic
from headway.exchange.channel import ExecutorChannel

BUFFERS_EVERY = 20
"""Steps between averages. Batch norm's own average spans about ten steps of its rank, this one all ranks."""
_MOST_BYTES = 1 << 22
"""Larger messages are not copied to make room; latency is small compared with their transfer."""


class BufferAverager:
    """Averages buffers every `BUFFERS_EVERY` steps, each over the ranks on which it is finite.

        buffer = last average + sum over finite ranks of (buffer - last average) / number of finite ranks

    All ranks get the same bits, and buffers that do not change keep theirs. Inf and NaN do not spread. The sums are in
    single precision. Buffers that are not floating-point numbers, such as the number of batches, stay as they are.

    **Cost**: 4 bytes an entry of the buffers in a message that is sent anyway, or an all-reduce; a copy of the buffers.

    Args:
        find: Returns the buffers of the model, which may have been replaced since the last call.
        channel: Brings rank 0's buffers to all ranks, to start from.
    """

    def __init__(self, find: Callable[[], Sequence[Tensor]], channel: ExecutorChannel) -> None:
        self._find = find
        self._buffers = self._found()
        self._last = self._flat()
        """What all ranks had after the last average."""
        if self._last.numel():
            channel.executor.broadcast(self._last, 0)
            self._set(self._last, [1.0] * len(self._buffers))
        self._pending: Tensor | None = None
        """What is yet to be added up in this step: the change of every buffer, and for each 1 if it is finite."""

    def begin(self, step: int) -> None:
        """Prepare the average of a step if it is due; no forward or backward pass may run meanwhile."""
        if not self._last.numel() or (step + 1) % BUFFERS_EVERY:
            return
        self._buffers = self._found()
        change = self._flat()
        if change.numel() != self._last.numel():
            had, has = self._last.numel(), change.numel()
            raise ValueError(f"the buffers had {had} entries, and have {has} now: wrap the model again")
        change -= self._last
        flags = change.new_ones(len(self._buffers))
        for place, part in enumerate(self._split(change)):
            if not bool(part.isfinite().all()):
                part.zero_()
                flags[place] = 0
        self._pending = torch.cat([change, flags])

    def channel_for(self, channel: ExecutorChannel) -> Channel:
        """Return the channel for an exchange, which takes the buffers along if they wait and there is room."""
        return channel if self._pending is None else _CombiningChannel(channel, self)

    def end(self, channel: ExecutorChannel) -> None:
        """Average buffers that still wait, in a collective of their own."""
        if self._pending is not None:
            self.set_average(channel.all_reduce(self._pending, AUTO))
            channel.read_meter()  # records are about gradients

    @property
    def pending(self) -> Tensor | None:
        """What waits to be added up over ranks, if anything does."""
        return self._pending

    def set_average(self, total: Tensor) -> None:
        """Take the sum over ranks, and set the buffers."""
        self._pending = None
        change, flags = total[: self._last.numel()], total[self._last.numel() :].tolist()
        for part, num_finite in zip(self._split(change), flags, strict=True):
            part.div_(max(num_finite, 1.0))
        self._last += change
        self._set(self._last, flags)

    def _set(self, values: Tensor, num_finite: Sequence[float]) -> None:
        """Set the buffers that differ, except those that are finite on no rank."""
        for buffer, part, number in zip(self._buffers, self._split(values), num_finite, strict=True):
            if number > 0 and not torch.equal(buffer.detach().float().flatten(), part):
                buffer.data.copy_(part.view_as(buffer))  # a graph that another forward pass has left stays valid

    def _found(self) -> list[Tensor]:
        return [buffer for buffer in self._find() if buffer.is_floating_point()]

    def _flat(self) -> Tensor:
        parts = [buffer.detach().float().flatten() for buffer in self._buffers]
        return torch.cat(parts) if parts else torch.zeros(0)

    def _split(self, flat: Tensor) -> tuple[Tensor, ...]:
        return torch.split(flat, [buffer.numel() for buffer in self._buffers])


class _CombiningChannel:
    """A channel whose first suitable collective takes the buffers along."""

    def __init__(self, channel: ExecutorChannel, buffers: BufferAverager) -> None:
        self._channel = channel
        self._buffers = buffers
        self.rank, self.num_ranks = channel.rank, channel.num_ranks

    def all_reduce(self, tensor: Tensor, algorithm: str) -> Tensor:
        pending = self._suitable(Collective.ALL_REDUCE, tensor, algorithm)
        if pending is None or tensor.dtype != torch.float32:
            return self._channel.all_reduce(tensor, algorithm)
        whole = self._channel.all_reduce(torch.cat([tensor.flatten(), pending]), algorithm)
        self._buffers.set_average(whole[tensor.numel() :])
        return tensor.copy_(whole[: tensor.numel()].view_as(tensor))

    def all_gather(self, message: Tensor, algorithm: str) -> Tensor:
        pending = self._suitable(Collective.ALL_GATHER, message, algorithm)
        if pending is None:
            return self._channel.all_gather(message, algorithm)
        flat = message.contiguous().view(-1).view(torch.uint8)
        rows = self._channel.all_gather(torch.cat([flat, pending.view(torch.uint8)]), algorithm)
        of_ranks = rows[:, flat.numel() :].contiguous().view(torch.float32)
        self._buffers.set_average(of_ranks.sum(dim=0))
        gathered = rows[:, : flat.numel()].contiguous().view(message.dtype)
        return gathered.view(self.num_ranks, *message.shape)

    def broadcast(self, tensor: Tensor, root: int, algorithm: str) -> Tensor:
        return self._channel.broadcast(tensor, root, algorithm)

    def _suitable(self, collective: Collective, tensor: Tensor, algorithm: str) -> Tensor | None:
        """Return the buffers if the collective can take them along for less than a collective of their own costs."""
        pending, costs = self._buffers.pending, self._channel.costs
        if pending is None or pending.device != tensor.device or tensor.nbytes > _MOST_BYTES:
            return None
        without, together = (
            costs.of_traffic(Traffic(collective, algorithm, num_bytes)).seconds(costs.link)
            for num_bytes in (tensor.nbytes, tensor.nbytes + pending.nbytes)
        )
        alone = costs.of_traffic(Traffic(Collective.ALL_REDUCE, AUTO, pending.nbytes)).seconds(costs.link)
        return pending if together - without <= alone else None
