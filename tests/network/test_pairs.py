"""Latency and bandwidth pair by pair."""

from __future__ import annotations

import itertools

import pytest

from headway.collectives import Executor
from headway.network import PairMatrix, probe_pairs
from headway.network.pairs import tournament


@pytest.mark.parametrize("num_ranks", range(1, 12))
def test_in_a_tournament_every_two_ranks_are_partners_once(num_ranks):
    met = []
    for matching in tournament(num_ranks):
        assert all(partner is None or matching[partner] == rank for rank, partner in enumerate(matching))
        assert sum(partner is None for partner in matching) == num_ranks % 2
        met += [(rank, partner) for rank, partner in enumerate(matching) if partner is not None and rank < partner]
    assert sorted(met) == list(itertools.combinations(range(num_ranks), 2))


def probe() -> tuple[PairMatrix, list[tuple[int, int]]]:
    progress: list[tuple[int, int]] = []
    with Executor(timeout_s=20) as executor:
        return probe_pairs(executor, lambda done, total: progress.append((done, total))), progress


@pytest.mark.pool
def test_all_ranks_get_the_whole_matrix(pool):
    found = pool.run(probe, num_ranks=3)
    matrix, progress = found[0]
    assert all(repr(theirs) == repr((matrix, progress)) for theirs in found)
    assert progress == [(1, 3), (2, 3), (3, 3)]
    for rank, other in itertools.product(range(3), range(3)):
        values = (matrix.latency_s[rank][other], matrix.bandwidth_bps[rank][other])
        assert values == (None, None) if rank == other else all(value > 0 for value in values)
    assert matrix.latency_s[0][1] == matrix.latency_s[1][0]
