"""Averages a model's floating-point buffers, such as the statistics of batch norm, along with its gradients.

DDP instead broadcasts rank 0's buffers before every forward pass: a collective of its own, whose latency nothing hides,
and the other ranks' statistics are never used. Here every rank keeps its own, and every so many steps all of them are
replaced by their average. It travels with the message of a gradient where that is cheaper than a collective of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

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
    """Averages buffers every so many steps, each over the ranks on which it is finite.

        buffer = last average + sum over finite ranks of (buffer - last average) / number of finite ranks

    All ranks get the same bits, and buffers that do not change keep theirs. Inf and NaN do not spread. A rank that has
    replaced a buffer by one of another size, or removed it, takes no part in the average of this buffer: what is sent
    has the same size on all ranks, whatever happens to a model. The sums are in double precision if any buffer is, and
    otherwise in single precision.

    **Cost**: 4 or 8 bytes an entry of the buffers in a message that is sent anyway, or an all-reduce; a copy of them.

    Args:
        find: Returns the floating-point buffers of the model by name; they may have been replaced since the last call.
            The first time it returns the same names, sizes and types on all ranks.
        channel: Brings rank 0's buffers to all ranks, to start from.
        every: Steps between averages.
    """

    def __init__(
        self, find: Callable[[], Mapping[str, Tensor]], channel: ExecutorChannel, every: int = BUFFERS_EVERY
    ) -> None:
        self._find = find
        self._every = every
        self._buffers = dict(find())
        self._numels = {name: buffer.numel() for name, buffer in self._buffers.items()}
        self._last = _flat([*self._buffers.values()])
        """What all ranks had after the last average."""
        if self._last.numel():
            channel.executor.broadcast(self._last, 0)
            self._set(self._last, [1.0] * len(self._numels))
        self._pending: Tensor | None = None
        """What is yet to be added up in this step: the change of every buffer, and for each 1 if it is finite."""

    def begin(self, step: int) -> None:
        """Prepare the average of a step if it is due; no forward or backward pass may run meanwhile."""
        if self._last.numel() and (step + 1) % self._every == 0:
            self._prepare()

    def average(self, channel: ExecutorChannel) -> None:
        """Average now, between steps; all ranks call it."""
        if self._last.numel():
            self._prepare()
            self.end(channel)

    @property
    def last(self) -> Tensor:
        """A copy of the last average: what the next one is computed from, and so part of a run's state."""
        return self._last.cpu().clone()

    def resume(self, last: Tensor | None, channel: ExecutorChannel) -> None:
        """Continue from the last average of another run, that of rank 0 on all ranks; all ranks call it."""
        if last is not None and last.numel() == self._last.numel():
            self._last.copy_(last)
        if self._last.numel():
            channel.executor.broadcast(self._last, 0)

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

    def _prepare(self) -> None:
        found = self._find()
        same = [name for name, numel in self._numels.items() if name in found and found[name].numel() == numel]
        self._buffers = {name: found[name] for name in same}
        change, flags = torch.zeros_like(self._last), self._last.new_zeros(len(self._numels))
        parts = zip(self._numels, self._split(change), self._split(self._last), strict=True)
        for place, (name, part, last) in enumerate(parts):
            if name in self._buffers:
                part.copy_(self._buffers[name].detach().flatten()).sub_(last)
                flags[place] = part.isfinite().all()
            if not flags[place]:
                part.zero_()
        self._pending = torch.cat([change, flags])

    def _set(self, values: Tensor, num_finite: Sequence[float]) -> None:
        """Set the buffers that differ, except those that are finite on no rank."""
        for name, part, number in zip(self._numels, self._split(values), num_finite, strict=True):
            buffer = self._buffers.get(name)
            if buffer is None or number == 0 or torch.equal(buffer.detach().to(part).flatten(), part):
                continue
            buffer.data.copy_(part.view_as(buffer))  # a graph that another forward pass has left stays valid

    def _split(self, flat: Tensor) -> tuple[Tensor, ...]:
        return torch.split(flat, list(self._numels.values()))


def _flat(buffers: Sequence[Tensor]) -> Tensor:
    """Return all entries, in double precision if any of them are, and otherwise in single precision."""
    is_double = any(buffer.dtype == torch.float64 for buffer in buffers)
    dtype = torch.float64 if is_double else torch.float32
    parts = [buffer.detach().to(dtype).flatten() for buffer in buffers]
    return torch.cat(parts) if parts else torch.zeros(0)


class _CombiningChannel:
    """A channel whose first suitable collective takes the buffers along."""

    def __init__(self, channel: ExecutorChannel, buffers: BufferAverager) -> None:
        self._channel = channel
        self._buffers = buffers
        self.rank, self.num_ranks = channel.rank, channel.num_ranks

    def all_reduce(self, tensor: Tensor, algorithm: str) -> Tensor:
        pending = self._suitable(Collective.ALL_REDUCE, tensor, algorithm)
        if pending is None or tensor.dtype != pending.dtype:
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
        of_ranks = rows[:, flat.numel() :].contiguous().view(pending.dtype)
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
