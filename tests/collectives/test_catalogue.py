"""Algorithms by name."""

from __future__ import annotations

import pytest

from headway.collectives import Collective, build


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((Collective.ALL_REDUCE, "rings", 4), "all_reduce has no algorithm 'rings': choose one of halving_doubling"),
        ((Collective.NEIGHBOUR_EXCHANGE, "ring", 4), "has no algorithm 'ring'"),
        ((Collective.ALL_REDUCE, "ring", 0), "num_ranks is 0"),
    ],
)
def test_unknown_algorithms_are_rejected(arguments, message):
    with pytest.raises(ValueError, match=message):
        build(*arguments)


def test_collectives_can_be_given_by_name():
    assert build("broadcast", "tree", 4, root=2) is build(Collective.BROADCAST, "tree", 4, root=2)
    assert build("broadcast", "tree", 4, root=2).root == 2


@pytest.mark.parametrize(
    ("algorithm", "options", "message"),
    [
        ("ring", {"root": 1}, "all_reduce has none"),
        ("ring", {"num_chunks": 4}, "it is for a chain"),
    ],
)
def test_options_without_effect_are_rejected(algorithm, options, message):
    with pytest.raises(ValueError, match=message):
        build(Collective.ALL_REDUCE, algorithm, 4, **options)


def test_a_root_out_of_range_is_rejected():
    with pytest.raises(ValueError, match="root is 4, but ranks go from 0 to 3"):
        build(Collective.BROADCAST, "tree", 4, root=4)
