"""Which calls have lanes, and that lanes which make room for others leave nothing behind."""

from __future__ import annotations

import gc
import hashlib
import json
import random
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import product
from pathlib import Path
from unittest import mock

import pytest
import torch

from headway.collectives import ALGORITHMS, Collective, Executor, build, lane_cache
from headway.collectives.lane_cache import _MAX_KINDS, _NUM_OWN_IDS, LaneCache, free_id
from headway.collectives.lanes import NUM_LANE_IDS, SERVICE_LANE, Lane
from headway.collectives.wire import Wire
from tests.collectives.wires import LocalWire, Notebook, PostOffice
from tests.forked import ForkedScripts

TIMEOUT_S = 20
RING = build(Collective.ALL_REDUCE, "ring", 4)
ROOM_FOR_ONE, ROOM_FOR_TWO = 60_000, 120_000
"""Of kinds of a ring with some hundred entries: the cost of transfers counts most."""


def cache_of(max_bytes: int, rank: int = 0) -> LaneCache:
    return LaneCache(Notebook(), rank, max_bytes)


def called(cache: LaneCache, numel: int) -> Lane:
    """Make a call as the executor does."""
    lane = cache.next(RING, numel, torch.float32)
    lane.run(cache.post_ahead)
    cache.settle()
    return lane


def is_shared(lane: Lane) -> bool:
    return lane.id >= _NUM_OWN_IDS


def test_two_lanes_of_a_kind_take_turns():
    cache = cache_of(1 << 20)
    ids = [called(cache, 8).id for _ in range(6)]
    assert ids[0] != ids[1]
    assert ids == ids[:2] * 3


def test_from_the_second_call_on_receives_were_posted_in_the_call_before():
    cache = cache_of(1 << 20)
    for numel in (8, 100):
        called(cache, numel)
    for numel in (100, 8, 100, 8, 8, 100):
        lane = cache.next(RING, numel, torch.float32)
        assert lane.is_posted
        lane.run(cache.post_ahead)


def test_when_there_are_too_many_kinds_some_keep_their_lanes_and_none_is_evicted():
    """With the least recently called always evicted, every call of a cycle would find its lane gone."""
    cache = cache_of(ROOM_FOR_TWO)
    found = [[is_shared(called(cache, numel)) for numel in (10, 20, 30, 40)] for _ in range(5)]
    assert found == [[False, False, True, True]] * 5
    assert cache._draining == []


def test_new_kinds_evict_old_ones_at_their_second_call():
    cache = cache_of(ROOM_FOR_ONE)
    assert [is_shared(called(cache, 10)) for _ in range(3)] == [False] * 3
    assert [is_shared(called(cache, 20)) for _ in range(3)] == [True, False, False]
    assert is_shared(called(cache, 10))


def test_an_evicted_lane_is_drained_within_the_call():
    cache = cache_of(ROOM_FOR_ONE)
    first = called(cache, 10)
    called(cache, 20)  # posts the receives of both lanes
    assert first.is_posted
    cache._wire.log.clear()
    called(cache, 20)
    num_sends = [line.startswith("send") for line in cache._wire.log].count(True)
    assert num_sends == 3 * 6  # those of the call, and of the two lanes that are drained
    assert first._traffic.receives == first._traffic.sends == {}
    assert first.id not in cache._ids


def test_shared_memory_is_kept_only_where_lanes_leave_room():
    cache = cache_of(ROOM_FOR_ONE)
    called(cache, 10)
    own = cache.num_bytes
    called(cache, 100)
    assert own < cache.num_bytes <= ROOM_FOR_ONE
    assert called(cache, 100_000)
    assert cache.num_bytes == own


def test_nothing_is_kept_without_room():
    cache = cache_of(0)
    assert all(is_shared(called(cache, 10)) for _ in range(3))
    assert cache.num_bytes == 0


def test_what_is_remembered_of_kinds_is_bounded(monkeypatch):
    monkeypatch.setattr(lane_cache, "_MAX_KINDS", 10)
    cache = cache_of(1 << 30)
    for numel in range(1, 30):
        called(cache, numel)
    assert list(cache._kinds) == [(RING, numel, torch.float32) for numel in range(20, 30)]
    assert len(cache._ids) == 2 * 10 + 1
    cache.clear()
    assert cache.num_bytes == 0


def test_the_rank_that_a_drained_lane_waits_for_is_known():
    cache, waited_for = cache_of(ROOM_FOR_ONE), []
    cache._wire.wait = lambda *_: waited_for.append(set(cache.waited_for()))
    for numel in (10, 20, 20):
        called(cache, numel)
    assert waited_for[-1] == {1}  # where a rank of a ring sends
    assert {3} in waited_for  # and from where it receives
    assert cache.waited_for() == frozenset()


@pytest.mark.parametrize("max_bytes", [0, ROOM_FOR_ONE, 200_000])
def test_all_ranks_make_and_evict_the_same_lanes(max_bytes):
    """A star's server needs most: what each rank holds must not decide."""
    seen = []
    for rank in range(4):
        cache, order = cache_of(max_bytes, rank), random.Random(0)
        ids = []
        for _ in range(100):
            schedule = build(Collective.ALL_REDUCE, order.choice(("star", "tree", "ring")), 4)
            lane = cache.next(schedule, 100 * order.randint(1, 4), torch.float32)
            lane.run(cache.post_ahead)
            ids.append((lane.id, len(cache._draining)))
            cache.settle()
        seen.append(ids)
    assert seen == [seen[0]] * 4
    assert (max(num_draining for _, num_draining in seen[0]) > 0) == (max_bytes > 0)


def test_ids_follow_from_what_the_lane_is_for_and_are_never_taken_ones():
    assert free_id(1234, {SERVICE_LANE}) == free_id(1234, {SERVICE_LANE})
    assert free_id(SERVICE_LANE, {SERVICE_LANE}) != SERVICE_LANE
    assert 2 * _MAX_KINDS < _NUM_OWN_IDS < NUM_LANE_IDS


@contextmanager
def without_garbage_collector() -> Iterator[None]:
    """Collect now, and not again: nothing may be left for it."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def call_on_two_ranks(caches: list[LaneCache], kind: tuple, value: float) -> list[Lane]:
    """Add ``value`` and 1 in one thread: rank 1 makes its call while rank 0 is about to wait."""
    lanes = [cache.next(*kind) for cache in caches]
    for lane, own in zip(lanes, (value, 1.0), strict=True):
        lane.buffer.fill_(own)

    def meanwhile() -> None:
        caches[0].post_ahead()
        lanes[1].run(caches[1].post_ahead)

    lanes[0].run(meanwhile)
    for cache in caches:
        cache.settle()
    return lanes


def test_a_hundred_thousand_calls_leave_nothing_behind():
    """Calls of 40 sizes in random order, several of a size in a row, with room for 6 sizes."""
    office, order, found = PostOffice(), random.Random(0), []
    caches = [LaneCache(LocalWire(office, rank), rank, 50_000) for rank in range(2)]
    schedule = build(Collective.ALL_REDUCE, "one_shot", 2)
    with without_garbage_collector():
        for call in range(1, 100_001):
            if call == 1 or order.random() < 0.1:
                kind = (schedule, order.randint(1, 40), torch.float32)
            lanes = call_on_two_ranks(caches, kind, float(call))
            if call % 97 == 0:
                assert [lane.buffer.tolist() for lane in lanes] == [[call + 1.0] * kind[1]] * 2
            if call % 25_000 == 0:
                found.append(sys.getallocatedblocks())
    assert found[-1] - found[0] < 5_000
    assert len(caches[0]._ids) < 20
    assert len(office.waiting) <= 2 * len(caches[0]._ids)  # both ways


def count_under_way(wire: Wire) -> Counter[str]:
    """Return a counter of the sends and receives that are started and not waited for from now on."""
    under_way: Counter[str] = Counter()

    def counted(method: Callable, change: int, *args: object) -> object:
        under_way["messages"] += change
        return method(*args)

    for name, change in (("send", 1), ("receive", 1), ("wait", -1)):
        setattr(wire, name, partial(counted, getattr(wire, name), change))
    return under_way


def call_in_random_order(num_calls: int) -> list[int]:
    """Make calls of 40 sizes, with room for 6 of them; return what is under way after each."""
    order, found = random.Random(0), []
    with Executor(timeout_s=TIMEOUT_S, scratch_bytes=50_000) as executor:
        under_way = count_under_way(executor._calls.wire)
        for call in range(num_calls):
            tensor = torch.full((order.randint(1, 40),), float(call + executor.rank))
            assert executor.all_reduce(tensor, "one_shot")[-1] == 2 * call + 1
            found.append(under_way["messages"])
    return found


def test_nothing_is_left_behind_in_gloo(pool):
    for found in pool.run(call_in_random_order, 400):
        assert found[0] == 1  # the second lane of the first kind
        assert max(found) <= 2 * 6  # a receive for each lane


def results_of(executor: Executor) -> list[torch.Tensor]:
    """Make every kind of call twice in a row, several times over."""
    results = []
    for _, (collective, builders), numel in product(range(2), ALGORITHMS.items(), (1, 1001)):
        own = torch.randn(numel, generator=torch.Generator().manual_seed(executor.rank))
        call = getattr(executor, collective.value)
        roots = [1] * (collective is Collective.BROADCAST)
        for algorithm in builders:
            results += [call(own.clone(), *roots, algorithm) for _ in range(2)]
    return results


def evict_all_the_time() -> tuple[str, int]:
    """Compare all results with those of an executor that has room; return a hash of them, and how many were evicted."""
    with Executor(timeout_s=TIMEOUT_S) as executor:
        expected = results_of(executor)
    with (
        mock.patch.object(Lane, "drain", autospec=True, side_effect=Lane.drain) as drain,
        Executor(timeout_s=TIMEOUT_S, scratch_bytes=90_000) as executor,
    ):
        found = results_of(executor)
        assert executor._lanes._draining == []
    assert all(map(torch.equal, found, expected))
    everything = torch.cat([tensor.flatten() for tensor in found])
    return hashlib.sha256(everything.numpy().tobytes()).hexdigest(), drain.call_count


@pytest.mark.parametrize("num_ranks", [3, 5])
def test_results_are_the_same_to_the_bit_while_lanes_are_evicted(pool, num_ranks):
    results = pool.run(evict_all_the_time, num_ranks=num_ranks)
    assert results == [results[0]] * num_ranks
    assert results[0][1] > 50


def evict_around_a_sum_of_some() -> list[float]:
    """Rank 1 makes other calls than ranks 0 and 2; all three must still evict the same lanes."""
    sums = []
    with Executor(timeout_s=TIMEOUT_S, scratch_bytes=72_000) as executor:
        for call in range(40):
            sums.append(executor.all_reduce(torch.ones(1 + call // 4 % 3), "ring")[0].item())
            if executor.rank != 1:
                sums.append(executor.all_reduce(torch.ones(1 + call // 8 % 2), "tree", among=(0, 2))[0].item())
    return sums


def test_calls_of_some_ranks_do_not_change_what_all_evict(pool):
    assert pool.run(evict_around_a_sum_of_some, num_ranks=3) == [[3.0, 2.0] * 40, [3.0] * 40, [3.0, 2.0] * 40]


def test_a_rank_that_dies_while_a_lane_is_drained_is_lost(tmp_path):
    """The others need nothing from it in this call but the bytes that drain the lane."""
    script = Path(__file__).with_name("scripts") / "lost_while_draining.py"
    with ForkedScripts(tmp_path) as scripts:
        for rank in range(3):
            scripts.start(script, str(tmp_path / "store"), str(rank))
        outputs = scripts.outputs([0, 2], timeout_s=60)
    assert [json.loads(text) for text in outputs.values()] == [{"evicted": True, "lost": [1]}] * 2
