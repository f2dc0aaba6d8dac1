"""How much time every plan adds to a step, on a link."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from headway.compress import Shape
from headway.exchange import CostModel, CostTable, Plan
from headway.network import Link
from headway.tuner.front import Floats


class Objectives:
    """The two times of every plan, for the buckets of a model.

    With fusion "step" the exchange begins when the last bucket has arrived, and all of it counts. With "bucket" each
    exchange begins when its bucket has arrived and the one before is over, while backward goes on:

        end_b = max(end_{b-1}, arrival_b) + cost_b;   exposed = end_last - arrival_last

    Args:
        model: Predicts costs.
        plans: The plans, with their fusion decided.
        shapes: The shapes of the buckets, in order of arrival.
        arrivals_s: When each bucket arrives; if their number differs, buckets are regrouped and arrive together.
    """

    def __init__(
        self, model: CostModel, plans: Sequence[Plan], shapes: Sequence[Shape], arrivals_s: Sequence[float]
    ) -> None:
        self._is_fused = np.array([plan.fusion == "step" for plan in plans])
        self._arrivals_s = list(arrivals_s) if len(arrivals_s) == len(shapes) else [0.0] * len(shapes)
        fused = [plan for plan in plans if plan.fusion == "step"]
        single = [plan for plan in plans if plan.fusion != "step"]
        self._fused = CostTable(model, fused, [sum(shapes, Shape(()))])
        self._single = CostTable(model, single, shapes)

    def at(self, link: Link) -> tuple[Floats, Floats]:
        """Return the time that compressing and that sending adds to a step, for each plan."""
        compress_s, sync_s = np.empty(self._is_fused.size), np.empty(self._is_fused.size)
        compress_s[self._is_fused] = self._fused.compute_s[:, 0]
        sync_s[self._is_fused] = self._fused.sync_s(link)[:, 0]
        compute_s, transfer_s = self._single.compute_s, self._single.sync_s(link)
        exposed_s = self._exposed_s(compute_s + transfer_s)
        all_s = (compute_s + transfer_s).sum(axis=1)
        share = compute_s.sum(axis=1) / np.where(all_s > 0, all_s, 1.0)
        compress_s[~self._is_fused] = share * exposed_s
        sync_s[~self._is_fused] = (1 - share) * exposed_s
        return compress_s, sync_s

    def _exposed_s(self, costs_s: Floats) -> Floats:
        end = np.zeros(len(costs_s))
        for bucket, arrival_s in enumerate(self._arrivals_s):
            end = np.maximum(end, arrival_s) + costs_s[:, bucket]
        return end - self._arrivals_s[-1]
