"""Process groups of an executor's own."""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import cast
from weakref import WeakKeyDictionary

import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import PrefixStore, Store, TCPStore
from torch.distributed.distributed_c10d import _get_process_group_store, default_pg_timeout

GRACE_S = 1.0
"""How long past the deadline ranks tell each other which ranks are missing, before they give up."""

_num_made: WeakKeyDictionary[dist.ProcessGroup, int] = WeakKeyDictionary()
_counting = threading.Lock()


def patience_of(parent: dist.ProcessGroup) -> float:
    """Return how long torch waits for a rank of a group, in seconds: the timeout that the group was made with."""
    backends = [parent._get_backend(device) for device in parent._device_types]
    timeouts: list[timedelta] = [each.options._timeout for each in backends if hasattr(each, "options")]
    return max(timeouts, default=default_pg_timeout).total_seconds()


def make_gloo_group(parent: dist.ProcessGroup) -> dist.ProcessGroup:
    """Return a new Gloo group of the same ranks, which all of them make in the same order.

    Groups are numbered for each parent, so it does not matter which other groups a rank is in. torch does not know of
    them: `destroy_process_group` leaves them alone, and the last reference that is dropped closes everything.
    """
    with _counting:
        number = _num_made[parent] = _num_made.get(parent, 0) + 1
    store = PrefixStore(f"headway/{number}", _without_server(_get_process_group_store(parent)))
    timeout = timedelta(seconds=patience_of(parent) + GRACE_S)
    made = dist.ProcessGroupGloo(store, dist.get_rank(parent), dist.get_world_size(parent), timeout)
    return cast(dist.ProcessGroup, made)  # it has the same methods


def _without_server(store: Store) -> Store:
    """Return a store that does not keep its TCP server alive: a later process group may need the port."""
    root = store
    while isinstance(root, PrefixStore):
        root = root.underlying_store
    return store.clone() if isinstance(root, TCPStore) and hasattr(store, "clone") else store


def all_gather(gathered: Tensor, own: Tensor, group: dist.ProcessGroup) -> None:
    """Call torch's own all-gather into one tensor."""
    group._allgather_base(gathered, own).wait()


class OwnGroups:
    """A Gloo group for CPU tensors and, where the parent has another backend, one of that for its devices.

    Args:
        parent: The ranks that take part.
        cpu_only: Whether to make no group for devices.
    """

    def __init__(self, parent: dist.ProcessGroup, *, cpu_only: bool = False) -> None:
        self.patience_s = patience_of(parent)
        self.cpu = make_gloo_group(parent)
        self._device = None if cpu_only or dist.get_backend(parent) == "gloo" else self._make_for_devices(parent)

    def of(self, tensor: Tensor) -> dist.ProcessGroup:
        """Return the group for a tensor's device."""
        return self.cpu if tensor.device.type == "cpu" or self._device is None else self._device

    def start_barrier(self) -> dist.Work | None:
        """Begin to wait for all ranks: closing a connection early may cut off a transfer. None if a rank is gone."""
        try:
            return self.cpu.barrier()
        except RuntimeError:
            return None

    def release(self) -> None:
        """Drop the groups: the last reference to a Gloo group closes it. Devices' groups are torch's to destroy."""
        vars(self).pop("cpu", None)
        if self._device is not None and dist.is_initialized():
            dist.destroy_process_group(self._device)
        self._device = None

    def _make_for_devices(self, parent: dist.ProcessGroup) -> dist.ProcessGroup:
        ranks = dist.get_process_group_ranks(parent)
        group: dist.ProcessGroup = dist.new_group(
            ranks,
            timeout=timedelta(seconds=self.patience_s + GRACE_S),
            backend=dist.get_backend(parent),
            use_local_synchronization=len(ranks) < dist.get_world_size(),
        )
        return group


def wait_for(work: dist.Work | None, timeout_s: float) -> None:
    """Wait for all ranks, for a while; one may be gone, or busy elsewhere."""
    if work is not None:
        try:
            work.wait(timedelta(seconds=max(timeout_s, 0.001)))
        except RuntimeError:
            return
