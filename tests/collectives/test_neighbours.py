"""Neighbour exchanges on any graph."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.collectives import neighbour_exchange, verify


@given(data=st.data())
@settings(max_examples=50, deadline=None)
def test_a_neighbour_exchange_is_right_on_any_graph(data):
    num_ranks = data.draw(st.integers(1, 64))
    pairs = st.tuples(st.integers(0, num_ranks - 1), st.integers(0, num_ranks - 1))
    graph = [set() for _ in range(num_ranks)]
    for a, b in data.draw(st.lists(pairs, max_size=200)):
        if a != b:
            graph[a].add(b)
            graph[b].add(a)
    schedule = neighbour_exchange(graph)
    verify(schedule)
    assert len(schedule.transfers) == sum(map(len, graph))


@pytest.mark.parametrize(
    ("graph", "message"),
    [
        ([], "no ranks"),
        ([[1], [0, 2], []], "1 has neighbour 2, but 2 lacks 1"),
        ([[0]], "its own neighbour"),
        ([[4], []], "rank 0 has neighbour 4, but ranks go from 0 to 1"),
    ],
)
def test_an_impossible_graph_is_rejected(graph, message):
    with pytest.raises(ValueError, match=message):
        neighbour_exchange(graph)
