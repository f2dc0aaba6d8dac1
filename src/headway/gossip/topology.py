"""The mixing matrix: who is joined to whom, and how much each counts."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from headway.gossip.graphs import GRAPHS, Neighbours

Matrix = npt.NDArray[np.float64]
_EXACT = 1e-6
"""By so much a row may miss 1, or an entry its mirror image: what a matrix in float32 does."""


@dataclass(frozen=True, eq=False)
class Topology:
    """A symmetric, doubly stochastic matrix W, with W_ij > 0 on the edges of a connected graph.

    Gossip with W brings models together by ρ = max(|λ₂|, |λ_N|) a step; the spectral gap is 1 - ρ.

    Args:
        name: Of the graph, or "matrix".
        weights: W.
    """

    name: str
    weights: Matrix

    def __post_init__(self) -> None:
        _check(self.weights)
        self.weights.flags.writeable = False

    @property
    def num_ranks(self) -> int:
        """N."""
        return len(self.weights)

    @cached_property
    def neighbours(self) -> Neighbours:
        """For each rank, those it is joined to, ascending."""
        edges = self.weights > 0
        return tuple(tuple(int(peer) for peer in np.flatnonzero(row) if peer != rank) for rank, row in enumerate(edges))

    @property
    def degree(self) -> int:
        """The most neighbours that a rank has."""
        return max(map(len, self.neighbours))

    @cached_property
    def _eigenvalues(self) -> Matrix:
        """All but λ₁ = 1, ascending."""
        return np.asarray(np.linalg.eigvalsh(self.weights)[:-1], dtype=np.float64)

    @property
    def rho(self) -> float:
        """ρ = max(|λ₂|, |λ_N|); 0 for a rank alone."""
        return float(np.abs(self._eigenvalues).max(initial=0.0))

    @property
    def spectral_gap(self) -> float:
        """1 - ρ: 1 is agreement in one step, near 0 is hardly any mixing."""
        return 1 - self.rho

    @property
    def most_noise(self) -> float:
        """The largest |C(z) - z| / |z| for which DCD is known to converge, (1 - ρ) / 2μ with μ = max|λᵢ - 1|.

        >>> [round(topology_of("ring", n).most_noise, 3) for n in (4, 8, 16, 32)]
        [0.25, 0.073, 0.019, 0.005]
        """
        mu = float(np.abs(self._eigenvalues - 1).max(initial=0.0))
        return self.spectral_gap / (2 * mu) if mu else np.inf

    @property
    def fingerprint(self) -> int:
        """A number that is the same for the same matrix, to seven digits."""
        return zlib.crc32(np.round(self.weights, 7).tobytes())

    def __str__(self) -> str:
        return f"{self.name} of {self.num_ranks}, degree {self.degree}, spectral gap {self.spectral_gap:.3g}"


def topology_of(given: Topology | str | Any, num_ranks: int) -> Topology:
    """Return the topology a user means.

    Args:
        given: "ring", "torus", "exponential", "complete", "star"; a matrix, as nested lists, array or tensor; or a
            networkx graph, whose nodes are the ranks. Graphs get Metropolis weights.
        num_ranks: How many ranks there are.

    >>> print(topology_of("ring", 8))
    ring of 8, degree 2, spectral gap 0.195
    """
    if isinstance(given, Topology):
        topology = given
    elif isinstance(given, str):
        if given not in GRAPHS:
            raise ValueError(f"topology is {given!r}, but must be one of {', '.join(GRAPHS)}, or a matrix")
        topology = Topology(given, metropolis(GRAPHS[given](num_ranks)))
    elif hasattr(given, "nodes") and hasattr(given, "edges"):
        topology = Topology("graph", metropolis(_neighbours_in(given, num_ranks)))
    else:
        topology = Topology("matrix", _as_matrix(given))
    if topology.num_ranks != num_ranks:
        raise ValueError(f"the topology has {topology.num_ranks} ranks, but there are {num_ranks}")
    return topology


def metropolis(neighbours: Neighbours) -> Matrix:
    """Return W_ij = 1 / (1 + max(dᵢ, dⱼ)) on edges, and on the diagonal what is left: doubly stochastic on any graph.

    >>> metropolis(((1,), (0, 2), (1,))).round(2).tolist()
    [[0.67, 0.33, 0.0], [0.33, 0.33, 0.33], [0.0, 0.33, 0.67]]
    """
    weights = np.zeros((len(neighbours), len(neighbours)))
    for rank, peers in enumerate(neighbours):
        for peer in peers:
            weights[rank, peer] = 1 / (1 + max(len(peers), len(neighbours[peer])))
    np.fill_diagonal(weights, 1 - weights.sum(axis=1))
    return weights


def components(neighbours: Sequence[Sequence[int]]) -> list[frozenset[int]]:
    """Return the sets of ranks that can reach each other.

    >>> components(((1,), (0,), ()))
    [frozenset({0, 1}), frozenset({2})]
    """
    found: list[frozenset[int]] = []
    for start in range(len(neighbours)):
        if any(start in part for part in found):
            continue
        reached, border = {start}, [start]
        while border:
            new = set(neighbours[border.pop()]) - reached
            reached |= new
            border += new
        found.append(frozenset(reached))
    return found


def _neighbours_in(graph: Any, num_ranks: int) -> Neighbours:
    """Return the neighbours in a networkx graph."""
    if set(graph.nodes) != set(range(num_ranks)):
        raise ValueError(
            f"the graph's nodes must be the ranks, 0 to {num_ranks - 1}: use networkx.convert_node_labels_to_integers"
        )
    joined: list[set[int]] = [set() for _ in range(num_ranks)]
    for edge in graph.edges:
        one, other = edge[:2]
        joined[one].add(other)
        joined[other].add(one)
    return tuple(tuple(sorted(peers - {rank})) for rank, peers in enumerate(joined))


def _as_matrix(given: Any) -> Matrix:
    """Return a matrix as it was meant: what float32 has rounded would add up over many steps."""
    try:
        weights: Matrix = np.array(given.tolist() if hasattr(given, "tolist") else given, dtype=np.float64)
    except (TypeError, ValueError):
        kind, known = type(given).__name__, ", ".join(GRAPHS)
        raise ValueError(f"topology is a {kind}, but must be one of {known}, a matrix or a networkx graph") from None
    if weights.ndim == 0:
        raise ValueError(f"topology is {given!r}, but must be one of {', '.join(GRAPHS)}, a matrix or a networkx graph")
    _check(weights)
    weights = (weights + weights.T) / 2
    np.fill_diagonal(weights, 0.0)
    np.fill_diagonal(weights, 1 - weights.sum(axis=1))
    return np.maximum(weights, 0.0)


def _check(weights: Matrix) -> None:
    """Raise unless W is what gossip needs; say which rank is at fault."""
    if weights.ndim != 2 or weights.shape[0] != weights.shape[1] or not len(weights):
        raise ValueError(f"the matrix has shape {weights.shape}, but must have a row and a column for each rank")
    if not np.isfinite(weights).all() or (weights < 0).any():
        rank, peer = np.argwhere(~(weights >= 0) | ~np.isfinite(weights))[0]
        raise ValueError(f"the weight of rank {peer} at rank {rank} is {weights[rank, peer]}, but must be 0 or more")
    odd = np.argwhere(np.abs(weights - weights.T) > _EXACT)
    if len(odd):
        rank, peer = odd[0]
        raise ValueError(
            f"ranks {rank} and {peer} give each other the weights {weights[rank, peer]:g} and {weights[peer, rank]:g}: "
            "the matrix must be symmetric"
        )
    sums = weights.sum(axis=1)
    if (np.abs(sums - 1) > _EXACT).any():
        rank = int(np.abs(sums - 1).argmax())
        raise ValueError(f"the weights at rank {rank} add up to {sums[rank]:g}, but must add up to 1")
    parts = components([np.flatnonzero(row).tolist() for row in weights])
    if len(parts) > 1:
        raise ValueError(f"no path leads from rank 0 to rank {min(parts[1])}: the graph must be connected")
    if len(weights) > 1 and np.linalg.eigvalsh(weights)[0] < -1 + _EXACT:
        raise ValueError("the matrix never mixes, as ranks only swap models: give the diagonal some weight")
