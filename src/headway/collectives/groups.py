"""Process groups of an executor's own."""

from __future__ import annotations

import logging
import time
from datetime import timedelta
from typing import cast

import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import Store

from headway.collectives.members import Members
from headway.errors import HeadwayError, PeerLost, ranks_in_words

_LOGGER = logging.getLogger("headway")

GRACE_S = 1.0
"""How long past the deadline ranks tell each other which ranks are missing, before they give up."""

_LEAST_CONNECTING_S = 30.0
"""How long connecting may take, at least."""

FIRST_LOG_S, LOG_GROWTH = 10.0, 3
"""When the log first says for whom a rank waits, and how much later it does so again."""


def make_gloo_group(members: Members, timeout_s: float) -> dist.ProcessGroup:
    """Return a new Gloo group of some ranks, which all of them make in the same order.

    Groups are numbered, so it does not matter which other groups a rank is in. torch does not know of them:
    `destroy_process_group` leaves them alone, and the last reference that is dropped closes everything.

    Args:
        members: The ranks that take part.
        timeout_s: How long connecting may take, once all ranks are about to; until then they wait for each other
            longer.

    Raises:
        PeerLost: Some ranks did not come.
        HeadwayError: All ranks came, but could not connect.
    """
    made = _connect(members.store_of_next_group(), members, max(timeout_s, _LEAST_CONNECTING_S))
    made._set_default_timeout(timedelta(seconds=members.patience_s + GRACE_S))
    return cast(dist.ProcessGroup, made)  # it has the same methods


def _connect(store: Store, members: Members, timeout_s: float) -> dist.ProcessGroupGloo:
    """Connect all ranks, once all of them are about to; until then nobody can tell a busy one from a lost one.

    Gloo lets a rank go as soon as its own connections stand. One that drops its group at once would fail others that
    are still connecting, so all of them meet once more.
    """
    rank, num_ranks, names = members.rank, members.num_ranks, members.names
    store.set(_mark_of(rank), "")
    _wait_until_all_are_there(store, names, members.connecting_s)
    try:
        made = dist.ProcessGroupGloo(store, rank, num_ranks, timedelta(seconds=timeout_s))
        cast(dist.ProcessGroup, made).barrier().wait()
    except RuntimeError as error:
        raise HeadwayError(f"rank {names[rank]} cannot connect to all of {num_ranks} ranks: {error}") from error
    return made


def _wait_until_all_are_there(store: Store, names: tuple[int, ...], patience_s: float) -> None:
    """Wait for all ranks, and say for whom after a while."""
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


def all_gather(gathered: Tensor, own: Tensor, group: dist.ProcessGroup) -> None:
    """Call torch's own all-gather into one tensor."""
    group._allgather_base(gathered, own).wait()


class OwnGroups:
    """A Gloo group for CPU tensors and, where the parent has another backend, one of that for its devices.

    Args:
        members: The ranks that take part.
        timeout_s: How long connecting may take.
        cpu_only: Whether to make no group for devices.
    """

    def __init__(self, members: Members, timeout_s: float, *, cpu_only: bool = False) -> None:
        self.cpu = make_gloo_group(members, timeout_s)
        parent = members.group
        has_devices = parent is not None and not cpu_only and dist.get_backend(parent) != "gloo"
        self._device = self._make_for_devices(members, parent) if has_devices else None

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

    @staticmethod
    def _make_for_devices(members: Members, parent: dist.ProcessGroup | None) -> dist.ProcessGroup:
        group: dist.ProcessGroup = dist.new_group(
            list(members.names),
            timeout=timedelta(seconds=members.patience_s + GRACE_S),
            backend=dist.get_backend(parent),
            use_local_synchronization=members.num_ranks < dist.get_world_size(),
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
