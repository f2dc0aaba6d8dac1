"""Process groups of an executor's own."""

from __future__ import annotations

from datetime import timedelta

import torch.distributed as dist
from torch import Tensor


def native_all_gather(gathered: Tensor, own: Tensor, group: dist.ProcessGroup) -> None:
    """Call torch's all-gather into one tensor, by the name that this version of torch has for it."""
    getattr(dist, "all_gather_single", dist.all_gather_into_tensor)(gathered, own, group=group)


class OwnGroups:
    """A Gloo group for CPU tensors and, where the parent has another backend, one of that for its devices.

    A group of all ranks is made by all of them together. One of some ranks is made by these alone; torch names it
    by its ranks and by how many groups there are, so it is kept until the parent goes: another one of the same name
    could find entries of the first in the store.

    Args:
        parent: The ranks that take part; all by default.
        timeout_s: When torch's own collectives give up.
        cpu_only: Whether to make no group for devices.
    """

    def __init__(self, parent: dist.ProcessGroup | None, timeout_s: float, *, cpu_only: bool = False) -> None:
        ranks = dist.get_process_group_ranks(parent or dist.group.WORLD)
        self._is_world = len(ranks) == dist.get_world_size()
        backend = dist.get_backend(parent)
        self.cpu = self._make(ranks, "gloo", timeout_s)
        self.device = self.cpu if cpu_only or backend == "gloo" else self._make(ranks, backend, timeout_s)

    def of(self, tensor: Tensor) -> dist.ProcessGroup:
        """Return the group for a tensor's device."""
        return self.cpu if tensor.device.type == "cpu" else self.device

    def wait_for_all(self, timeout_s: float) -> None:
        """Wait, for a while, until all ranks are here: closing a connection early may cut off a transfer."""
        try:
            work = dist.barrier(self.cpu, async_op=True)
            if work is not None:
                work.wait(timedelta(seconds=timeout_s))
        except RuntimeError:
            return  # a rank is gone, or busy elsewhere

    def destroy(self) -> None:
        """Close connections, unless the parent's are closed already."""
        if not dist.is_initialized() or not self._is_world:
            return
        for group in {self.cpu, self.device}:
            dist.destroy_process_group(group)

    def _make(self, ranks: list[int], backend: str, timeout_s: float) -> dist.ProcessGroup:
        group: dist.ProcessGroup = dist.new_group(
            ranks,
            timeout=timedelta(seconds=timeout_s),
            backend=backend,
            use_local_synchronization=not self._is_world,
        )
        return group
