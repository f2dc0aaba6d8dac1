import os
import threading
import time

import pytest
import torch
import torch.distributed as dist

from tests.pool import Pool, RankFailed, RankTimedOut


def _sum_of_ranks() -> float:
    x = torch.tensor([float(dist.get_rank())])
    dist.all_reduce(x)
    return x.item()


def _fail_on(rank: int) -> int:
    if dist.get_rank() == rank:
        raise RuntimeError("meant to fail")
    return dist.get_rank()


def _sleep_on(rank: int, seconds: float) -> None:
    if dist.get_rank() == rank:
        time.sleep(seconds)


def _die_on(rank: int) -> None:
    if dist.get_rank() == rank:
        os._exit(3)


@pytest.mark.parametrize("num_ranks", [1, 2, 3, 8])
def test_ranks_form_a_group_of_the_size_asked_for(pool, num_ranks):
    assert pool.run(_sum_of_ranks, num_ranks=num_ranks) == [num_ranks * (num_ranks - 1) / 2] * num_ranks


def test_workers_stay_between_calls(pool):
    assert pool.run(os.getpid, num_ranks=3) == pool.run(os.getpid, num_ranks=3)


def test_a_failure_names_its_rank_and_leaves_the_pool_usable(pool):
    with pytest.raises(RankFailed, match=r"rank 1[\s\S]*meant to fail") as caught:
        pool.run(_fail_on, 1, num_ranks=3)
    assert set(caught.value.tracebacks) == {1}
    assert pool.run(_sum_of_ranks, num_ranks=3) == [3.0] * 3


def _fail_while_others_wait(rank: int) -> None:
    if dist.get_rank() == rank:
        raise RuntimeError("meant to fail")
    dist.all_reduce(torch.zeros(1))


def _return_a_lock() -> object:
    return threading.Lock()


def test_the_failure_is_reported_though_others_wait_for_it(monkeypatch):
    monkeypatch.setattr("tests.pool._GRACE_S", 0.2)
    with Pool(size=2) as small, pytest.raises(RankFailed, match=r"rank 1[\s\S]*meant to fail"):
        small.run(_fail_while_others_wait, 1)


def test_a_result_that_cannot_be_pickled_is_a_failure(pool):
    with pytest.raises(RankFailed, match="pickle"):
        pool.run(_return_a_lock)


def test_more_ranks_than_workers_is_refused(pool):
    with pytest.raises(ValueError, match="num_ranks is 10"):
        pool.run(_sum_of_ranks, num_ranks=10)


def test_silence_and_death_are_reported_and_survived():
    with Pool(size=2) as small:
        with pytest.raises(RankTimedOut, match=r"ranks \[1\]"):
            small.run(_sleep_on, 1, 30.0, timeout_s=3.0)
        with pytest.raises(RankFailed, match="died"):
            small.run(_die_on, 0)
        assert small.run(_sum_of_ranks) == [1.0, 1.0]
