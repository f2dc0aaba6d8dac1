"""Tells the advisor what it has to know of a run."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

import torch
from torch import Tensor

from headway.collectives import Executor
from headway.compress import BucketMemory
from headway.exchange.advisor import Advisor
from headway.exchange.layout import Layout
from headway.kernels import gain_curve


class Informant:
    """Between an averager and an advisor.

    Args:
        advisor: Chooses plans.
        executor: For the first choice, which is broadcast.
    """

    def __init__(self, advisor: Advisor, executor: Executor) -> None:
        self._advisor = advisor
        self._executor = executor
        self._is_open = False
        self._ended_at: float | None = None
        """When the last step's exchanges were over."""

    def restart(self) -> None:
        """Begin again, from another state of the run."""
        self._is_open, self._ended_at = False, None

    def open(self, step: int, layout: Layout, arrivals_s: Sequence[float]) -> None:
        """Let rank 0 choose the first plan, as soon as buckets are known; later calls do nothing."""
        if self._is_open:
            return
        answer = self._advisor.open(step, [bucket.shape for bucket in layout], arrivals_s)
        numbers = torch.tensor(answer, dtype=torch.float64)
        self._executor.broadcast(numbers, 0)
        self._advisor.adopt(numbers.tolist())
        self._is_open = True

    def show(self, gradient: Tensor, memory: BucketMemory) -> None:
        """Show what there is to send; a residual is added to it now, and not by the exchange that follows."""
        of_gradient = of_total = gain_curve(gradient.float() if gradient.dtype == torch.float64 else gradient)
        if memory.is_used:
            memory.whole.accumulate(gradient)
            gradient.zero_()
            of_total = gain_curve(memory.residual)
        self._advisor.note_curves(of_gradient, of_total)

    def note_step(self, last_submitted_at: float, *, is_measured: bool) -> None:
        """Tell how long a step took by itself, and how much longer the exchange made it, unless it was measured."""
        before, self._ended_at = self._ended_at, time.perf_counter()
        if before is not None:
            exposed_s = math.nan if is_measured else self._ended_at - last_submitted_at
            self._advisor.note_step(max(last_submitted_at - before, 0.0), exposed_s)
