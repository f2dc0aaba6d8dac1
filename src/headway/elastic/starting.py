"""Starts torch's process group so that a process that is started again can have it, too."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, TCPStore
from torch.distributed.distributed_c10d import default_pg_timeout

_LAZY = "TORCH_GLOO_LAZY_INIT"


def init_process_group(timeout: timedelta | None = None) -> None:
    """Start the Gloo process group of this process as ``torch.distributed.init_process_group("gloo")`` does.

    Two things are different. Ranks connect to each other when they first send something: a process that is started
    again while the others run need not wait for them, and can ask to be let in (`headway.local.wrap` does). And every
    restart by torchrun has keys of its own in the store: Gloo would find the addresses of processes that are gone.

    ``RANK``, ``WORLD_SIZE``, ``MASTER_ADDR`` and ``MASTER_PORT`` are read from the environment, as torchrun sets them.
    The store is kept by torchrun, or by rank 0 if torchrun is not used: without its keeper nobody can meet again.

    Args:
        timeout: How long torch waits for a rank; 30 minutes by default.
    """
    rank, num_ranks, address, port = (_variable(name) for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"))
    timeout = timeout or default_pg_timeout
    has_agent = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == str(True)
    store = TCPStore(
        address,
        int(port),
        int(num_ranks),
        is_master=rank == "0" and not has_agent,
        timeout=timeout,
        wait_for_workers=False,
        multi_tenant=True,
    )
    with _connecting_late():
        dist.init_process_group(
            "gloo",
            store=PrefixStore(f"headway/start/{attempt()}", store),
            rank=int(rank),
            world_size=int(num_ranks),
            timeout=timeout,
        )


def attempt() -> str:
    """Return which restart by torchrun this is; "0" without torchrun."""
    return os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")


def _variable(name: str) -> str:
    value = os.environ.get(name, "")
    is_number = value.isdecimal() or name == "MASTER_ADDR"
    if not value or not is_number:
        needed = "RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT"
        raise ValueError(f"{name} is {value!r} in the environment: start with torchrun, or set {needed}")
    return value


@contextmanager
def _connecting_late() -> Iterator[None]:
    """Let the Gloo groups that are made inside connect when they are used; others connect at once, as usual."""
    before = os.environ.get(_LAZY)
    os.environ[_LAZY] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[_LAZY]
        else:
            os.environ[_LAZY] = before
