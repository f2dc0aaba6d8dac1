"""Topologies: the named graphs, for any number of ranks, and the mixing matrix."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

Neighbours = tuple[tuple[int, ...], ...]
"""For each rank, its neighbours, ascending."""
Matrix = npt.NDArray[np.float64]
_EXACT = 1e-6
"""Tolerance for the sum of a row, and for symmetry: that of a matrix in float32."""


def ring(num_ranks: int) -> Neighbours:
    """Join each rank to the next and the previous one.

    >>> ring(4)
    ((1, 3), (0, 2), (1, 3), (0, 2))
    """
    return _shifted(num_ranks, (1,))


def torus(num_ranks: int) -> Neighbours:
    """Join each rank to the four next to it in the squarest grid of all ranks; a prime number of ranks is a ring.

    >>> torus(6)[0]
    (1, 2, 3)
    """
    num_rows = max(n for n in range(1, math.isqrt(num_ranks) + 1) if num_ranks % n == 0)
    num_columns = num_ranks // num_rows

    def next_to(rank: int) -> set[int]:
        row, column = divmod(rank, num_columns)
        across = {row * num_columns + (column + shift) % num_columns for shift in (-1, 1)}
        return across | {(row + shift) % num_rows * num_columns + column for shift in (-1, 1)}

    return _sorted([next_to(rank) for rank in range(num_ranks)])


def exponential(num_ranks: int) -> Neighbours:
    """Join each rank to those 1, 2, 4, 8 ... before and after it.

    >>> exponential(8)[0]
    (1, 2, 4, 6, 7)
    """
    return _shifted(num_ranks, [1 << power for power in range(max(num_ranks - 1, 1).bit_length())])


def complete(num_ranks: int) -> Neighbours:
    """Join each rank to all others."""
    return _sorted([set(range(num_ranks)) for _ in range(num_ranks)])


def star(num_ranks: int) -> Neighbours:
    """Join each rank to rank 0."""
    return _sorted([set(range(num_ranks)) if rank == 0 else {0} for rank in range(num_ranks)])


_MOST_CHECKED = 9
_REGISTERED: dict[str, Callable[[int], Neighbours]] = {
    "ring": ring,
    "torus": torus,
    "exponential": exponential,
    "complete": complete,
    "star": star,
}
GRAPHS: Mapping[str, Callable[[int], Neighbours]] = MappingProxyType(_REGISTERED)
"""The named graphs."""


def register_topology(name: str, graph: Callable[[int], Neighbours]) -> None:
    """Make a graph known by a name; all ranks do so. It gets Metropolis weights.

    Args:
        name: The name, for ``topology=``.
        graph: Takes the number of ranks to the neighbours of each, ascending.

    Raises:
        ValueError: The name is taken, or the graph of some number of ranks up to 9 is not symmetric or not connected.
    """
    if _REGISTERED.get(name, graph) is not graph:
        raise ValueError(f"there is a topology {name!r} already: choose another name")
    for num_ranks in range(1, _MOST_CHECKED + 1):
        Topology(name, metropolis(graph(num_ranks)))
    _REGISTERED[name] = graph


def _shifted(num_ranks: int, shifts: tuple[int, ...] | list[int]) -> Neighbours:
    both_ways = [sign * shift for shift in shifts for sign in (-1, 1)]
    return _sorted([{(rank + shift) % num_ranks for shift in both_ways} for rank in range(num_ranks)])


def _sorted(joined: list[set[int]]) -> Neighbours:
    return tuple(tuple(sorted(ranks - {rank})) for rank, ranks in enumerate(joined))


@dataclass(frozen=True, eq=False)
class Topology:
    """A symmetric, doubly stochastic matrix W, with W_ij > 0 on the edges of a connected graph.

    A round with W shrinks the distance of models from their mean by ρ = max(|λ₂|, |λ_N|); the spectral gap is 1 - ρ.

    Args:
        name: Name of the graph, or "matrix".
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
        """For each rank, its neighbours, ascending."""
        edges = self.weights > 0
        return tuple(tuple(int(peer) for peer in np.flatnonzero(row) if peer != rank) for rank, row in enumerate(edges))

    def weights_at(self, rank: int) -> dict[int, float]:
        """Return W_ij of each neighbour j of a rank i."""
        return {peer: float(self.weights[rank, peer]) for peer in self.neighbours[rank]}

    @property
    def degree(self) -> int:
        """The largest number of neighbours of a rank."""
        return max(map(len, self.neighbours))

    @cached_property
    def _eigenvalues(self) -> Matrix:
        """All but λ₁ = 1, ascending."""
        return np.asarray(np.linalg.eigvalsh(self.weights)[:-1], dtype=np.float64)

    @property
    def rho(self) -> float:
        """ρ = max(|λ₂|, |λ_N|); 0 for a single rank."""
        return float(np.abs(self._eigenvalues).max(initial=0.0))

    @property
    def spectral_gap(self) -> float:
        """1 - ρ: 1 is agreement in one round, near 0 is hardly any mixing."""
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
        """A number that depends on the matrix, to seven digits."""
        return zlib.crc32(np.round(self.weights, 7).tobytes())

    def __str__(self) -> str:
        return f"{self.name} of {self.num_ranks}, degree {self.degree}, spectral gap {self.spectral_gap:.3g}"


def topology_of(given: Topology | str | Any, num_ranks: int) -> Topology:
    """Return the topology that an argument of `wrap` stands for.

    Args:
        given: "ring", "torus", "exponential", "complete", "star"; a matrix, as nested lists, array or tensor; or a
            networkx graph, whose nodes are the ranks. Graphs get Metropolis weights.
        num_ranks: Number of ranks.

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
    """Return W_ij = 1 / (1 + max(dᵢ, dⱼ)) on edges, and the rest on the diagonal: doubly stochastic on any graph.

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
    return _sorted(joined)


def _as_matrix(given: Any) -> Matrix:
    """Return an exactly doubly stochastic matrix: errors of float32 would add up over many rounds."""
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
    """Raise unless W is what gossip needs, and name the rank at fault."""
    if weights.ndim != 2 or weights.shape[0] != weights.shape[1] or not len(weights):
        raise ValueError(f"the matrix has shape {weights.shape}, but must have a row and a column for each rank")
    if not np.isfinite(weights).all() or (weights < 0).any():
        rank, peer = np.argwhere(~(weights >= 0) | ~np.isfinite(weights))[0]
        raise ValueError(f"the weight of rank {peer} at rank {rank} is {weights[rank, peer]}, but must be 0 or more")
    asymmetric = np.argwhere(np.abs(weights - weights.T) > _EXACT)
    if len(asymmetric):
        rank, peer = asymmetric[0]
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
