"""The ranks that make process groups together: who they are, and the store where they meet."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from weakref import WeakKeyDictionary

import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store, TCPStore
from torch.distributed.distributed_c10d import _get_process_group_store, default_pg_timeout

_numbers: WeakKeyDictionary[dist.ProcessGroup, Iterator[int]] = WeakKeyDictionary()
_numbering = threading.Lock()


@dataclass(frozen=True, kw_only=True)
class Members:
    """Ranks that take part in something, as one of them sees it.

    Args:
        rank: The place of this rank among them.
        names: Their numbers among all processes, in order.
        store: Where they meet.
        patience_s: How long a rank that is alive is waited for.
        connecting_s: How long all are waited for before they connect.
        numbers: Numbers the groups that they make: all make the same in the same order.
        group: Their process group, if torch knows one.
    """

    rank: int
    names: tuple[int, ...]
    store: Store
    patience_s: float
    connecting_s: float
    numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    group: dist.ProcessGroup | None = None

    @classmethod
    def of(cls, group: dist.ProcessGroup | None) -> Members:
        """Return the ranks of a process group; all by default.

        Raises:
            ValueError: There is no process group, or this rank is not in it.
        """
        if not dist.is_initialized():
            raise ValueError("there is no process group: call torch.distributed.init_process_group first")
        if dist.get_rank(group) < 0:
            raise ValueError("this process is not in the group: make the executor on its ranks only")
        parent = group or dist.group.WORLD
        assert parent is not None
        with _numbering:
            numbers = _numbers.setdefault(parent, itertools.count(1))
        patience_s = patience_of(parent)
        return cls(
            rank=dist.get_rank(parent),
            names=tuple(dist.get_process_group_ranks(parent)),
            store=_get_process_group_store(parent),
            patience_s=patience_s,
            connecting_s=patience_s,
            numbers=numbers,
            group=parent,
        )

    @property
    def num_ranks(self) -> int:
        """How many there are."""
        return len(self.names)

    def store_of_next_group(self) -> Store:
        """Return the store for the next group that all of them make."""
        with _numbering:
            number = next(self.numbers)
        return PrefixStore(f"headway/{number}", without_server(self.store))


def patience_of(group: dist.ProcessGroup) -> float:
    """Return how long torch waits for a rank of a group, in seconds: the timeout that the group was made with."""
    backends = [group._get_backend(device) for device in group._device_types]
    timeouts: list[timedelta] = [each.options._timeout for each in backends if hasattr(each, "options")]
    return max(timeouts, default=default_pg_timeout).total_seconds()


def without_server(store: Store) -> Store:
    """Return a store that does not keep its TCP server alive: a later process group may need the port."""
    root = store
    while isinstance(root, PrefixStore):
        root = root.underlying_store
    return store.clone() if isinstance(root, TCPStore) and hasattr(store, "clone") else store
