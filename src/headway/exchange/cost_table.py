"""What thousands of plans take, for some buckets, on any link, in one go: `CostModel` by columns."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from headway.compress import Shape
from headway.exchange.catalogue import exchange_of
from headway.exchange.costs import CostModel
from headway.exchange.plan import Plan
from headway.network import CollectiveTable, Link

Seconds = npt.NDArray[np.float64]
_MOST_COLLECTIVES = 3
"""Of one exchange."""


class CostTable:
    """Plans (rows) for buckets (columns): ``compute_s``, and by `sync_s` the time on a link.

    Args:
        model: Gives ranks, overhead and speeds; its link does not matter.
        plans: What to look at.
        shapes: Of the buckets.
    """

    def __init__(self, model: CostModel, plans: Sequence[Plan], shapes: Sequence[Shape]) -> None:
        distinct = list(dict.fromkeys(shapes))  # layers of a kind make buckets of a shape
        self._columns = [distinct.index(shape) for shape in shapes]
        traffic = [[exchange_of(plan).traffic(shape) for shape in distinct] for plan in plans]
        keys = [[[(t.collective, t.algorithm, t.num_bytes) for t in each] for each in row] for row in traffic]
        flat = (key for row in keys for each in row for key in each)
        self._table = CollectiveTable(flat, model.num_ranks, model.calibration.overhead)
        self._rows = np.full((len(plans), len(distinct), _MOST_COLLECTIVES), len(self._table.row_of))
        for i, row in enumerate(keys):
            for j, each in enumerate(row):
                self._rows[i, j, : len(each)] = [self._table.row_of[key] for key in each]
        compute_s = [model.compute_s(plan, shape) for plan in plans for shape in distinct]
        table = np.array(compute_s, dtype=np.float64).reshape(len(plans), len(distinct))
        self.compute_s: Seconds = table[:, self._columns]

    def sync_s(self, link: Link) -> Seconds:
        """Return the time of the collectives of each plan for each bucket."""
        seconds = np.append(self._table.seconds(link), 0.0)
        return np.asarray(seconds[self._rows].sum(axis=2)[:, self._columns])
