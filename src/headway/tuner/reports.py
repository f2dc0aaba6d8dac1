"""What ranks report in a council, and what that comes to."""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from headway.exchange import ExchangeRecord
from headway.kernels import GAIN_RATIOS, GainCurve
from headway.tuner.front import Floats

_NUM_STEPS = 10
"""The time of a step is the median of so many."""
_NUM_TIMES = 3
NUM_REPORTS = _NUM_TIMES + 2 * len(GAIN_RATIOS)
_NUM_SETTLING_GAINS, _NUM_SETTLING_TIMES = 8, 2
"""Steps after a switch that do not tell yet what a plan sends of G, and how long it takes."""


@dataclass(frozen=True, kw_only=True)
class Report:
    """What is known of the latest steps; NaN for what is not."""

    own_s: float
    """A step beside the exchange."""
    exposed_s: float
    """What the exchange makes a step longer by."""
    realised_gain: float
    """|sent|² / |G|² with the plan in force, once it has been for a while."""
    curve: Floats
    """Gains of the gradient alone, at `headway.kernels.GAIN_RATIOS`."""
    total_curve: Floats
    """Gains of its sum with the residual."""

    @classmethod
    def together(cls, rows: Floats) -> Report:
        """Return what the reports of all ranks, a row each, come to.

        Everybody waits for the slowest, whose exchange waits for nobody: the longest own time, and the shortest
        exchange. Of gains the mean over ranks counts.
        """
        own_s, exposed_s, gains = (column[np.isfinite(column)] for column in rows[:, :_NUM_TIMES].T)
        curves = rows[np.isfinite(rows[:, _NUM_TIMES:]).all(axis=1), _NUM_TIMES:]
        mean = curves.mean(axis=0) if len(curves) else np.full(2 * len(GAIN_RATIOS), np.nan)
        return cls(
            own_s=float(own_s.max()) if own_s.size else math.nan,
            exposed_s=float(exposed_s.min()) if exposed_s.size else math.nan,
            realised_gain=float(gains.mean()) if gains.size else math.nan,
            curve=mean[: len(GAIN_RATIOS)],
            total_curve=mean[len(GAIN_RATIOS) :],
        )

    @property
    def numbers(self) -> list[float]:
        """All of it, for the wire."""
        return [self.own_s, self.exposed_s, self.realised_gain, *map(float, (*self.curve, *self.total_curve))]

    @property
    def has_curve(self) -> bool:
        """Whether the curves are known."""
        return bool(np.isfinite(self.curve).all() and np.isfinite(self.total_curve).all())


@dataclass
class Observer:
    """Collects what one rank sees of its steps."""

    own_s: deque[float] = field(default_factory=lambda: deque(maxlen=_NUM_STEPS))
    exposed_s: deque[float] = field(default_factory=lambda: deque(maxlen=_NUM_STEPS))
    curves: list[tuple[GainCurve, GainCurve]] = field(default_factory=list)
    switched_at: int = 0
    num_to_skip: int = 0

    def note_step(self, own_s: float, exposed_s: float) -> None:
        """Take in a step; NaN for an exchange that was slowed down to be measured."""
        self.own_s.append(own_s)
        if self.num_to_skip > 0:
            self.num_to_skip -= 1
        elif math.isfinite(exposed_s):
            self.exposed_s.append(exposed_s)

    def note_switch(self, step: int) -> None:
        """Forget what is only about the plan before."""
        self.switched_at, self.num_to_skip = step, _NUM_SETTLING_TIMES
        self.exposed_s.clear()

    def report(self, records: Sequence[ExchangeRecord]) -> Report:
        """Return what has been seen since the last time; curves are reported once."""
        curves, self.curves = self.curves, []
        settled = [record for record in records if record.step >= self.switched_at + _NUM_SETTLING_GAINS]
        known = [record for record in settled if math.isfinite(record.gain) and record.dense_bytes > 0]
        gains, weights = [record.gain for record in known], [record.dense_bytes for record in known]
        return Report(
            own_s=statistics.median(self.own_s) if self.own_s else math.nan,
            exposed_s=statistics.median(self.exposed_s) if self.exposed_s else math.nan,
            realised_gain=float(np.average(gains, weights=weights)) if known else math.nan,
            curve=_of_all_buckets([of_gradient for of_gradient, _ in curves]),
            total_curve=_of_all_buckets([of_total for _, of_total in curves]),
        )


def _of_all_buckets(curves: Sequence[GainCurve]) -> Floats:
    """Return the curve of buckets that each send the same share; NaN where there is nothing to send."""
    energies = [curve.energy for curve in curves]
    if not 0 < sum(energies) < math.inf:
        return np.full(len(GAIN_RATIOS), np.nan)
    return np.asarray(np.average([curve.gains for curve in curves], axis=0, weights=energies))
