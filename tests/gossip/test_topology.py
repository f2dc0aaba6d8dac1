"""Named graphs, matrices and networkx graphs: what mixes is accepted, what does not is refused with a reason."""

from __future__ import annotations

import re

import networkx
import numpy as np
import pytest
import torch

from headway.gossip import Topology, metropolis, topology_of
from headway.gossip.topology import GRAPHS, components

SIZES = (1, 2, 3, 4, 5, 7, 8, 9, 12, 13, 16)


@pytest.mark.parametrize("num_ranks", SIZES)
@pytest.mark.parametrize("name", GRAPHS)
def test_every_named_graph_mixes_for_every_number_of_ranks(name, num_ranks):
    topology = topology_of(name, num_ranks)
    weights = topology.weights
    np.testing.assert_allclose(weights, weights.T)
    np.testing.assert_allclose(weights.sum(axis=0), 1)
    assert (weights >= 0).all()
    assert 0 < topology.spectral_gap <= 1 + 1e-12
    mixed = np.linalg.matrix_power(weights, 2000) @ np.arange(num_ranks)
    np.testing.assert_allclose(mixed, (num_ranks - 1) / 2, atol=1e-6)
    assert topology.neighbours == GRAPHS[name](num_ranks)


def test_degrees_are_those_of_the_graphs():
    degrees = {name: topology_of(name, 16).degree for name in GRAPHS}
    assert degrees == {"ring": 2, "torus": 4, "exponential": 7, "complete": 15, "star": 15}


def test_the_torus_of_a_prime_number_is_a_ring_and_that_of_a_square_is_square():
    assert GRAPHS["torus"](7) == GRAPHS["ring"](7)
    assert GRAPHS["torus"](9)[0] == (1, 2, 3, 6)


def test_better_connected_graphs_have_a_larger_gap():
    gaps = [topology_of(name, 16).spectral_gap for name in ("ring", "torus", "exponential", "complete")]
    assert gaps == sorted(gaps)
    assert gaps[-1] == pytest.approx(1)


def test_the_spectrum_is_that_of_a_ring():
    """λ_k = (1 + 2 cos(2πk/N)) / 3."""
    expected = sorted(abs(1 + 2 * np.cos(2 * np.pi * k / 8)) / 3 for k in range(1, 8))[-1]
    assert topology_of("ring", 8).rho == pytest.approx(expected)


def test_a_matrix_may_be_lists_an_array_or_a_tensor():
    half = [[0.5, 0.5], [0.5, 0.5]]
    for given in (half, np.array(half), torch.tensor(half)):
        assert topology_of(given, 2).weights.tolist() == half
    thirds = torch.full((3, 3), 1 / 3)  # float32 does not add up to 1 exactly
    assert topology_of(thirds, 3).spectral_gap == pytest.approx(1)


def test_a_networkx_graph_gets_metropolis_weights():
    topology = topology_of(networkx.path_graph(3), 3)
    assert topology.neighbours == ((1,), (0, 2), (1,))
    np.testing.assert_allclose(topology.weights, metropolis(((1,), (0, 2), (1,))))
    looped = networkx.MultiGraph([(0, 1), (1, 1), (0, 1)])
    assert topology_of(looped, 2).neighbours == ((1,), (0,))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("hypercube", "topology is 'hypercube', but must be one of ring, torus"),
        ([[1.0]], "has 1 ranks, but there are 3"),
        ([[0.5, 0.5], [0.5, 0.5]], "has 2 ranks, but there are 3"),
        ([[0.5, 0.5]], "has shape (1, 2)"),
        ([], "has shape (0,)"),
        ([[1, 2, 3], [4, 5]], "topology is a list"),
        (object(), "topology is a object"),
        ([[0.5, 0.5, 0], [0.25, 0.5, 0.25], [0, 0.25, 0.75]], "ranks 0 and 1 give each other the weights 0.5 and 0.25"),
        ([[0.5, 0.25, 0], [0.25, 0.5, 0.25], [0, 0.25, 0.75]], "the weights at rank 0 add up to 0.75"),
        ([[1.5, -0.5, 0], [-0.5, 1.5, 0], [0, 0, 1]], "the weight of rank 1 at rank 0 is -0.5"),
        ([[np.nan] * 3] * 3, "the weight of rank 0 at rank 0 is nan"),
        ([[0.5, 0.5, 0], [0.5, 0.5, 0], [0, 0, 1]], "no path leads from rank 0 to rank 2"),
        (networkx.Graph([("a", "b")]), "nodes must be the ranks, 0 to 2"),
        (networkx.empty_graph(3), "no path leads from rank 0 to rank 1"),
    ],
)
def test_what_cannot_mix_is_refused_with_the_reason(given, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        topology_of(given, 3)


def test_ranks_that_only_swap_are_refused():
    with pytest.raises(ValueError, match="never mixes"):
        topology_of([[0, 1], [1, 0]], 2)


def test_fingerprints_tell_matrices_apart():
    assert topology_of("ring", 8).fingerprint != topology_of("torus", 8).fingerprint
    assert topology_of("ring", 3).fingerprint == topology_of("complete", 3).fingerprint
    assert Topology("matrix", topology_of("ring", 8).weights.copy()).fingerprint == topology_of("ring", 8).fingerprint


def test_components_are_found():
    assert components(((), (3,), (), (1,))) == [frozenset({0}), frozenset({1, 3}), frozenset({2})]
