"""The link model, and the first look at a network."""

from __future__ import annotations

import time

import pytest

from headway.collectives import Executor
from headway.network import Link, probe_link


def test_a_link_is_latency_and_bandwidth():
    assert Link(latency_s=0.01, bandwidth_bps=8e6).seconds(1_000_000) == pytest.approx(1.01)


@pytest.mark.parametrize(
    ("latency_s", "bandwidth_bps", "message"),
    [(-1, 1e9, "latency_s is -1"), (float("nan"), 1e9, "latency_s is nan"), (0, 0, "bandwidth_bps is 0")],
)
def test_a_link_that_cannot_be_is_refused(latency_s, bandwidth_bps, message):
    with pytest.raises(ValueError, match=message):
        Link(latency_s=latency_s, bandwidth_bps=bandwidth_bps)


def probe_with_skew() -> float:
    """One rank is always late, by more than a call takes: neither may see a call that takes no time."""
    with Executor(timeout_s=20) as executor:
        gather = executor.all_gather

        def late(message, algorithm):
            time.sleep(0.02 * executor.rank)
            return gather(message, algorithm)

        executor.all_gather = late
        return probe_link(executor).latency_s


@pytest.mark.pool
def test_a_late_rank_does_not_hide_the_latency(pool):
    first, second = pool.run(probe_with_skew, num_ranks=2)
    assert first == second >= 0.009


def probe() -> tuple[float, float]:
    with Executor(timeout_s=20) as executor:
        link = probe_link(executor)
        return link.latency_s, link.bandwidth_bps


@pytest.mark.pool
@pytest.mark.parametrize("num_ranks", [1, 2, 3])
def test_all_ranks_see_the_same_network(pool, num_ranks):
    links = pool.run(probe, num_ranks=num_ranks)
    assert len(set(links)) == 1
    assert 0 <= links[0][0] < 1
    assert links[0][1] > 1e6
