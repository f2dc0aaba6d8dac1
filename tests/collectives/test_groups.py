"""Process groups of our own: how long they wait, and what they keep alive."""

from __future__ import annotations

import logging
import re
import socket
import time
from dataclasses import replace
from datetime import timedelta

import pytest
import torch.distributed as dist
from torch.distributed.distributed_c10d import _get_process_group_store

from headway import HeadwayError, PeerLost
from headway.collectives import groups
from headway.collectives.groups import make_gloo_group
from headway.collectives.members import Members, patience_of, without_server


def patiences() -> list[float]:
    return [patience_of(dist.group.WORLD), patience_of(dist.new_group(timeout=timedelta(seconds=17)))]


def test_ranks_wait_as_long_as_the_parent_group(pool):
    assert pool.run(patiences, num_ranks=2) == [[60.0, 17.0]] * 2


def patience_of_own_group() -> float:
    """Connecting and waiting have different deadlines."""
    return make_gloo_group(Members.of(None), 20.0).options._timeout.total_seconds()


def test_once_connected_ranks_wait_longer_than_for_connecting(pool):
    assert pool.run(patience_of_own_group, num_ranks=2) == [60.0 + groups.GRACE_S] * 2


def was_connected_when_others_went_on() -> bool:
    """Rank 1 is slow to connect; had rank 0 gone on, and dropped its group, it would have failed rank 1."""
    store, gloo = _get_process_group_store(dist.group.WORLD), dist.ProcessGroupGloo

    def connect_slowly(*args: object) -> dist.ProcessGroupGloo:
        made = gloo(*args)
        time.sleep(0.3)
        store.set("rank 1 is connected", "")
        return made

    if dist.get_rank() == 1:
        dist.ProcessGroupGloo = connect_slowly
    try:
        group = make_gloo_group(Members.of(None), 20.0)
    finally:
        dist.ProcessGroupGloo = gloo
    was_connected = store.check(["rank 1 is connected"])
    group.barrier().wait()
    return was_connected


def test_nobody_goes_on_before_all_are_connected(pool):
    assert pool.run(was_connected_when_others_went_on, num_ranks=2) == [True, True]


def connect_without(missing: int, patience_s: float, comes: bool) -> tuple[str, list[int], list[str]]:
    """One rank is alive, and comes when the others have said that they wait, or not at all."""
    store, said = _get_process_group_store(dist.group.WORLD), []
    if dist.get_rank() == missing:
        store.wait(["seen 0", "seen 1"])
        if not comes:
            return "stayed away", [], said
    watch = logging.Handler()
    watch.emit = lambda record: (said.append(record.getMessage()), store.set(f"seen {dist.get_rank()}", ""))
    logging.getLogger("headway").addHandler(watch)
    groups.FIRST_LOG_S = 0.2
    try:
        make_gloo_group(replace(Members.of(None), connecting_s=patience_s), 20.0)
    except PeerLost as error:
        return str(error), list(error.ranks), said
    finally:
        groups.FIRST_LOG_S = 10.0
        logging.getLogger("headway").removeHandler(watch)
        store.set(f"seen {dist.get_rank()}", "")
    return "connected", [], said


def test_a_rank_that_comes_late_is_waited_for_and_the_log_says_so(pool):
    *others, late = pool.run(connect_without, 2, 60.0, True, num_ranks=3)
    assert late == ("connected", [], [])
    for message, _, said in others:
        assert message == "connected"
        assert re.fullmatch(r"\d+ s of waiting for rank 2 in connecting 3 ranks", said[0])


def test_a_rank_that_does_not_come_for_as_long_as_torch_waits_is_named(pool):
    for message, ranks, _ in pool.run(connect_without, 2, 0.5, False, num_ranks=3)[:2]:
        assert ranks == [2]
        assert message.startswith("no answer from rank 2 within 0.5 s")
        assert "(in connecting 3 ranks)" in message


def test_ranks_that_cannot_connect_say_why(monkeypatch):
    """As where a firewall is between them: all have come, and nobody is to be named."""

    def refuse(*_: object) -> None:
        raise RuntimeError("connection refused")

    monkeypatch.setattr(dist, "ProcessGroupGloo", refuse)
    members = Members(rank=0, names=(4,), store=dist.HashStore(), patience_s=5.0, connecting_s=5.0)
    with pytest.raises(HeadwayError, match="rank 4 cannot connect to all of 1 ranks: connection refused"):
        make_gloo_group(members, 1.0)


def groups_that_torch_does_not_know() -> tuple[int, int]:
    before = len(dist.distributed_c10d._world.pg_map)
    made = [make_gloo_group(Members.of(None), 20.0) for _ in range(2)]
    for group in made:
        group.barrier().wait()
    return before, len(dist.distributed_c10d._world.pg_map)


def test_torch_does_not_know_of_them(pool):
    assert pool.run(groups_that_torch_does_not_know, num_ranks=2) == [(1, 1)] * 2


def test_they_do_not_keep_the_server_of_the_store_alive():
    """A script that destroys its process group may start a server on the same port again."""
    server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    port, store = server.port, dist.PrefixStore("a", dist.PrefixStore("b", server))
    kept = without_server(store)
    kept.set("key", "value")
    assert store.get("key") == b"value"
    del server, store
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), timeout=5).close()
    del kept
