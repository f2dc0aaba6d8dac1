"""The Pareto front: what cannot be had faster without learning less."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from headway.exchange import Plan

Floats = npt.NDArray[np.float64]
Indices = npt.NDArray[np.intp]
_FEW = 160
"""So many points are compared pair by pair."""


@dataclass(frozen=True, eq=False)
class Front:
    """Plans with what they take and what they teach; a policy chooses one of them.

    ``gain`` is what a step teaches: |sent|² / |G|² in the long run, less where ranks take turns (see `GainModel`).
    ``compress_s`` and ``sync_s`` are what a step gets longer by; what hides behind the backward pass is not in them.
    """

    plans: Sequence[Plan]
    compress_s: Floats
    sync_s: Floats
    gain: Floats
    own_s: float
    """What a step takes beside the exchange: forward, backward, optimizer, data."""
    in_force: int | None = None
    """Which of them is the plan now, if one is: policies may be lenient with it."""

    @property
    def step_s(self) -> Floats:
        """How long a step takes."""
        return self.own_s + self.compress_s + self.sync_s

    @property
    def objectives(self) -> Floats:
        """What is to be small: t_compress, t_sync and 1/gain, a row a plan."""
        return np.stack([self.compress_s, self.sync_s, 1 / self.gain], axis=1)

    def __len__(self) -> int:
        return len(self.plans)


def pareto_front(costs: Floats) -> Indices:
    """Return the rows that no other row dominates, ascending; of equal rows the first.

    a dominates b if it is nowhere larger and somewhere smaller. A row of least sum is dominated by none: it is taken,
    and all that it dominates go. When few are left, all pairs are compared.

    **Cost**: O(n · front) operations on columns of numpy; some 0.5 ms for a grid of a thousand plans. **Error**: none.

    >>> pareto_front(np.array([[1.0, 3.0], [2.0, 2.0], [2.0, 3.0], [3.0, 1.0]]))
    array([0, 1, 3])
    """
    assert costs.ndim == 2
    scale = np.ptp(costs, axis=0)
    sums = (costs / np.where(scale > 0, scale, 1.0)).sum(axis=1)
    order = np.lexsort((*costs.T[::-1], sums))  # where rounding makes sums equal, whoever dominates still comes first
    left = np.ascontiguousarray(costs[order].T)
    front: list[Indices] = []
    while order.size > _FEW:
        front.append(order[:1])
        keep = (left < left[:, :1]).any(axis=0)
        order, left = order[keep], left[:, keep]
    front.append(order[~_dominated(left)])
    return np.sort(np.concatenate(front))


def _dominated(columns: Floats) -> npt.NDArray[np.bool_]:
    """Return which points an earlier one is nowhere larger than; whoever dominates comes first."""
    nowhere_larger = np.ones((columns.shape[1],) * 2, dtype=bool)
    for column in columns:
        nowhere_larger &= column[:, None] <= column[None, :]
    return np.asarray(np.triu(nowhere_larger, k=1).any(axis=0))
