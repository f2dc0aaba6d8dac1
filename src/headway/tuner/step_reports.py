"""What a rank measures of its own steps, and what the measurements of all ranks come to."""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated

import numpy as np

from headway.exchange import CodeGain, ExchangeRecord, GainCurves
from headway.kernels import GainCurve
from headway.kernels.quantizers import BITS
from headway.tuner.codec import AtMost
from headway.tuner.decision import GainsOnGrid

_NUM_STEPS = 10
"""The time of a step is the median of this many."""
_STEP_OVER_BACKWARD = 1.5
_NUM_SETTLING_GAINS, _NUM_SETTLING_TIMES = 8, 2
"""Steps after a switch that do not yet show the steady gain of a plan, and its time."""


CodeGains = Annotated[tuple[CodeGain, ...], AtMost(len(BITS))]


@dataclass(frozen=True, kw_only=True)
class StepReport:
    """The latest steps of a rank, or of all ranks; NaN, or an empty curve, for what is not known."""

    own_s: float
    """The time of a step without its exchange."""
    exposed_s: float
    """The time that the exchange adds to a step."""
    realised_gain: float
    """1 - |G - sent|² / |G|² with the plan in force, once it has settled."""
    curve: GainsOnGrid = ()
    """The gain curve of the gradient alone."""
    total_curve: GainsOnGrid = ()
    """The gain curve of its sum with the residual."""
    code_gains: CodeGains = ()
    """What codes are expected to preserve of the gradient alone."""
    moved: float = 0.0
    """With local steps: <d, sent> of this rank, where d is how far it has moved."""
    agreed: float = 0.0
    """With local steps: <d, average of what ranks have sent>."""

    @property
    def has_curve(self) -> bool:
        """Whether the gain curves are known."""
        return bool(self.curve and self.total_curve)

    @property
    def agreement(self) -> float:
        """How much the differences of ranks agree, |mean d|² / mean |d|²; NaN if that is not known."""
        return self.agreed / self.moved if self.moved > 0 else math.nan

    @classmethod
    def combined(cls, reports: Sequence[StepReport]) -> StepReport:
        """Return what the reports of all ranks come to.

        All ranks wait for the slowest, whose exchange waits for no other: the longest own time counts, and the
        shortest exchange. Of gains the mean over ranks counts.
        """
        own_s, exposed_s, gains = (
            [value for report in reports if math.isfinite(value := getattr(report, name))]
            for name in ("own_s", "exposed_s", "realised_gain")
        )
        known = [report for report in reports if report.has_curve]
        return cls(
            own_s=max(own_s, default=math.nan),
            exposed_s=min(exposed_s, default=math.nan),
            realised_gain=statistics.fmean(gains) if gains else math.nan,
            curve=_mean([report.curve for report in known]),
            total_curve=_mean([report.total_curve for report in known]),
            code_gains=_by_bits([report.code_gains for report in reports], [1.0] * len(reports)),
            moved=math.fsum(report.moved for report in reports),
            agreed=math.fsum(report.agreed for report in reports),
        )


@dataclass
class StepObserver:
    """Collects what one rank measures of its steps."""

    own_s: deque[float] = field(default_factory=lambda: deque(maxlen=_NUM_STEPS))
    exposed_s: deque[float] = field(default_factory=lambda: deque(maxlen=_NUM_STEPS))
    curves: list[GainCurves] = field(default_factory=list)
    guess_s: float = math.nan
    """The time of a step without its exchange, before one has been measured."""
    switched_at: int = 0
    num_to_skip: int = 0
    moved: float = 0.0
    agreed: float = 0.0

    def observe_step(self, own_s: float, exposed_s: float) -> None:
        """Take in a step; NaN for an exchange that was slowed down to be measured, and for a time that is not known."""
        if math.isfinite(own_s):
            self.own_s.append(own_s)
        if self.num_to_skip > 0:
            self.num_to_skip -= 1
        elif math.isfinite(exposed_s):
            self.exposed_s.append(exposed_s)

    def observe_backward(self, seconds: float) -> None:
        """Take in how long the gradients of a step took: its forward pass takes about half as long."""
        self.guess_s = _STEP_OVER_BACKWARD * seconds

    def observe_switch(self, step: int) -> None:
        """Forget what was measured of the plan before."""
        self.switched_at, self.num_to_skip = step, _NUM_SETTLING_TIMES
        self.exposed_s.clear()

    def report(self, records: Sequence[ExchangeRecord]) -> StepReport:
        """Return what was measured since the last report, the records since then included."""
        curves, self.curves = self.curves, []
        moved, self.moved, agreed, self.agreed = self.moved, 0.0, self.agreed, 0.0
        settled = [record for record in records if record.step >= self.switched_at + _NUM_SETTLING_GAINS]
        known = [record for record in settled if math.isfinite(record.gain) and record.dense_bytes > 0]
        gains, weights = [record.gain for record in known], [record.dense_bytes for record in known]
        return StepReport(
            own_s=statistics.median(self.own_s) if self.own_s else self.guess_s,
            exposed_s=statistics.median(self.exposed_s) if self.exposed_s else math.nan,
            realised_gain=float(np.average(gains, weights=weights)) if known else math.nan,
            curve=_of_all_buckets([each.gradient for each in curves]),
            total_curve=_of_all_buckets([each.total for each in curves]),
            code_gains=_by_bits([each.codes for each in curves], [each.gradient.energy for each in curves]),
            moved=moved,
            agreed=agreed,
        )


def _of_all_buckets(curves: Sequence[GainCurve]) -> tuple[float, ...]:
    """Return the curve of buckets that each send the same share; empty where there is nothing finite to send."""
    energies = [curve.energy for curve in curves]
    if not 0 < sum(energies) < math.inf:
        return ()
    mean = np.average([curve.gains for curve in curves], axis=0, weights=energies)
    return tuple(mean.tolist()) if np.isfinite(mean).all() else ()


def _by_bits(groups: Sequence[Sequence[CodeGain]], weights: Sequence[float]) -> tuple[CodeGain, ...]:
    """Return the weighted mean of the known gains for each number of bits."""
    found: dict[int, list[tuple[float, float]]] = {}
    for group, weight in zip(groups, weights, strict=True):
        for bits, gain in group:
            if math.isfinite(gain) and 0 < weight < math.inf:
                found.setdefault(bits, []).append((gain, weight))
    return tuple(
        CodeGain(bits, sum(gain * weight for gain, weight in known) / sum(weight for _, weight in known))
        for bits, known in found.items()
    )


def _mean(curves: Sequence[Sequence[float]]) -> tuple[float, ...]:
    return tuple(np.mean(curves, axis=0).tolist()) if curves else ()
