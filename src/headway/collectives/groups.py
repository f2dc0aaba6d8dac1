"""Process groups of an executor's own."""

from __future__ import annotations

import logging
import threading
import time
from datetime import timedelta
from typing import cast
from weakref import WeakKeyDictionary

import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import PrefixStore, Store, TCPStore
from torch.distributed.distributed_c10d import _get_process_group_store, default_pg_timeout

from headway.errors import HeadwayError, PeerLost, ranks_in_words

_LOGGER = logging.getLogger("headway")

GRACE_S = 1.0
"""How long past the deadline ranks tell each other which ranks are missing, before they give up."""

_LEAST_CONNECTING_S = 30.0
"""How long connecting may take, at least."""

FIRST_LOG_S, LOG_GROWTH = 10.0, 3
"""When the log first says for whom a rank waits, and how much later it does so again."""

_num_made: WeakKeyDictionary[dist.ProcessGroup, int] = WeakKeyDictionary()
_counting = threading.Lock()


def patience_of(parent: dist.ProcessGroup) -> float:
    """Return how long torch waits for a rank of a group, in seconds: the timeout that the group was made with."""
    backends = [parent._get_backend(device) for device in parent._device_types]
    timeouts: list[timedelta] = [each.options._timeout for each in backends if hasattr(each, "options")]
    return max(timeouts, default=default_pg_timeout).total_seconds()


def make_gloo_group(parent: dist.ProcessGroup, timeout_s: float) -> dist.ProcessGroup:
    """Return a new Gloo group of the same ranks, which all of them make in the same order.

    Groups are numbered for each parent, so it does not matter which other groups a rank is in. torch does not know of
    them: `destroy_process_group` leaves them alone, and the last reference that is dropped closes everything.

    Args:
        parent: The ranks that take part.
        timeout_s: How long connecting may take, once all ranks are about to; until then they wait for each other as
            long as torch would.

    Raises:
        PeerLost: Some ranks did not come.
        HeadwayError: All ranks came, but could not connect.
    """
    with _counting:
        number = _num_made[parent] = _num_made.get(parent, 0) + 1
    store = PrefixStore(f"headway/{number}", _without_server(_get_process_group_store(parent)))
    made = _connect(store, parent, max(timeout_s, _LEAST_CONNECTING_S))
    made._set_default_timeout(timedelta(seconds=patience_of(parent) + GRACE_S))
    return cast(dist.ProcessGroup, made)  # it has the same methods


def _connect(store: Store, parent: dist.ProcessGroup, timeout_s: float) -> dist.ProcessGroupGloo:
    """Connect all ranks, once all of them are about to; until then nobody can tell a busy one from a lost one.

    Gloo lets a rank go as soon as its own connections stand. One that drops its group at once would fail others that
    are still connecting, so all of them meet once more.
    """
    rank, num_ranks = dist.get_rank(parent), dist.get_world_size(parent)
    names = dist.get_process_group_ranks(parent)
    store.set(_mark_of(rank), "")
    _wait_until_all_are_there(store, names, patience_of(parent))
    try:
        made = dist.ProcessGroupGloo(store, rank, num_ranks, timedelta(seconds=timeout_s))
        cast(dist.ProcessGroup, made).barrier().wait()
    except RuntimeError as error:
        raise HeadwayError(f"rank {names[rank]} cannot connect to all of {num_ranks} ranks: {error}") from error
    return made


def _wait_until_all_are_there(store: Store, names: list[int], patience_s: float) -> None:
    """Wait for all ranks as long as torch would, and say for whom after a while."""
    begun, pause_s = time.monotonic(), FIRST_LOG_S
    what, marks = f"connecting {len(names)} ranks", [_mark_of(rank) for rank in range(len(names))]
    while True:
        left_s = begun + patience_s - time.monotonic()
        asked_at = time.monotonic()
        try:
            return store.wait(marks, timedelta(seconds=max(min(pause_s, left_s), 0.001)))
        except RuntimeError as error:
            missing = [names[rank] for rank in _find_absent(store, len(names))]
            waited_s = time.monotonic() - begun
            if waited_s >= patience_s:
                raise PeerLost(missing, what, patience_s) from error
            if time.monotonic() - asked_at < min(pause_s, left_s) / 2:
                raise HeadwayError(f"{what}: the store that they meet at is gone ({error})") from error
        if missing:
            _LOGGER.warning("%.0f s of waiting for %s in %s", waited_s, ranks_in_words(missing), what)
        pause_s *= LOG_GROWTH


def _find_absent(store: Store, num_ranks: int) -> list[int]:
    """Return the ranks that are not about to connect; none if the store is gone, with the rank that keeps it."""
    try:
        return [rank for rank in range(num_ranks) if not store.check([_mark_of(rank)])]
    except RuntimeError:
        return []


def _mark_of(rank: int) -> str:
    """Return what a rank writes into the store when it begins to connect."""
    return f"here/{rank}"


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
        timeout_s: How long connecting may take.
        cpu_only: Whether to make no group for devices.
    """

    def __init__(self, parent: dist.ProcessGroup, timeout_s: float, *, cpu_only: bool = False) -> None:
        self.patience_s = patience_of(parent)
        self.cpu = make_gloo_group(parent, timeout_s)
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


def wait_for(work: dist.Work | None, deadline: float) -> bool:
    """Wait for all ranks until the deadline (`time.monotonic`); return whether all have come."""
    if work is None:
        return False
    try:
        work.wait(timedelta(seconds=max(deadline - time.monotonic(), 0.001)))
    except RuntimeError:
        return False
    return True
