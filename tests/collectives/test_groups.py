"""Process groups of our own: how long they wait, and what they keep alive."""

from __future__ import annotations

import socket
from datetime import timedelta

import pytest
import torch.distributed as dist

from headway.collectives.groups import _without_server, make_gloo_group, patience_of


def patiences() -> list[float]:
    return [patience_of(dist.group.WORLD), patience_of(dist.new_group(timeout=timedelta(seconds=17)))]


def test_ranks_wait_as_long_as_the_parent_group(pool):
    assert pool.run(patiences, num_ranks=2) == [[60.0, 17.0]] * 2


def groups_that_torch_does_not_know() -> tuple[int, int]:
    before = len(dist.distributed_c10d._world.pg_map)
    made = [make_gloo_group(dist.group.WORLD) for _ in range(2)]
    for group in made:
        group.barrier().wait()
    return before, len(dist.distributed_c10d._world.pg_map)


def test_torch_does_not_know_of_them(pool):
    assert pool.run(groups_that_torch_does_not_know, num_ranks=2) == [(1, 1)] * 2


def test_they_do_not_keep_the_server_of_the_store_alive():
    """A script that destroys its process group may start a server on the same port again."""
    server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    port, store = server.port, dist.PrefixStore("a", dist.PrefixStore("b", server))
    kept = _without_server(store)
    kept.set("key", "value")
    assert store.get("key") == b"value"
    del server, store
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), timeout=5).close()
    del kept
