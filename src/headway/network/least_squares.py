"""Recursive least squares for a link: seconds = rounds · α + bytes · β."""

from __future__ import annotations

import math
from dataclasses import dataclass

from headway.network.link import Link

_KEEP = 0.96
"""Forgetting: an observation counts half after 17 more."""
_DOUBT = 0.5
"""How far off α and β may be at the start and after a change, relative to themselves."""
_OUTLIER = 3.0
"""Deviations of more than so many standard deviations count as if they were that large."""
_FIRST_NOISE, _LEAST_NOISE, _MOST_NOISE = 0.05, 0.01, 0.3
_NOISE_MEMORY = 0.05
_LEAST_LATENCY_S, _MOST_BPS = 1e-7, 1e13


@dataclass(frozen=True, kw_only=True)
class Observation:
    """A transfer: how often latency was paid, how many bytes went through the busiest place, and how long it took."""

    rounds: float
    num_bytes: float
    seconds: float

    def __post_init__(self) -> None:
        if not (self.rounds >= 0 and self.num_bytes >= 0 and self.rounds + self.num_bytes > 0):
            raise ValueError(f"{self.rounds} rounds of {self.num_bytes} bytes tell nothing")
        if not math.isfinite(self.seconds):
            raise ValueError(f"seconds is {self.seconds}, but must be a number")


class LinkFit:
    """α and β, and how well they are known.

    Deviations are relative to what is expected, so that long and short transfers count alike; with x = (rounds, bytes)
    over the seconds expected, d the deviation, s² its variance, and P the covariance of (α, β),

        gain = P x / (xᵀ P x + s²);  (α, β) += gain · d;  P = (P - gain xᵀ P) / 0.96

    Args:
        first: What a probe has found, or a guess.
    """

    def __init__(self, first: Link) -> None:
        self.alpha = max(first.latency_s, _LEAST_LATENCY_S)
        self.beta = 8 / min(first.bandwidth_bps, _MOST_BPS)
        self._noise = _FIRST_NOISE
        self.doubt_latency()
        self.doubt_bandwidth()

    @property
    def link(self) -> Link:
        """The link as it is known now."""
        return Link(latency_s=self.alpha, bandwidth_bps=8 / self.beta)

    @property
    def latency_error(self) -> float:
        """The relative standard error of α."""
        return math.sqrt(self._var_alpha) / self.alpha

    @property
    def bandwidth_error(self) -> float:
        """The relative standard error of β."""
        return math.sqrt(self._var_beta) / self.beta

    def doubt_latency(self) -> None:
        """Take α to be known badly."""
        self._var_alpha = (_DOUBT * self.alpha) ** 2
        self._covariance = 0.0

    def doubt_bandwidth(self) -> None:
        """Take β to be known badly."""
        self._var_beta = (_DOUBT * self.beta) ** 2
        self._covariance = 0.0

    def learn(self, observation: Observation) -> None:
        """Take an observation in; one far from what is expected counts less, and all teach how much noise is usual."""
        expected_s = observation.rounds * self.alpha + observation.num_bytes * self.beta
        deviation = observation.seconds / expected_s - 1
        weight = min(1.0, _OUTLIER * self._noise / max(abs(deviation), 1e-12))
        self._noise += _NOISE_MEMORY * (1.25 * min(abs(deviation), _OUTLIER * self._noise) - self._noise)
        self._noise = min(max(self._noise, _LEAST_NOISE), _MOST_NOISE)
        self._step(observation.rounds / expected_s, observation.num_bytes / expected_s, deviation, weight)

    def learn_surely(self, observation: Observation) -> None:
        """Take in an observation that is known to be no outlier."""
        expected_s = observation.rounds * self.alpha + observation.num_bytes * self.beta
        deviation = observation.seconds / expected_s - 1
        self._step(observation.rounds / expected_s, observation.num_bytes / expected_s, deviation, 1.0)

    def _step(self, x: float, y: float, deviation: float, weight: float) -> None:
        towards_alpha = self._var_alpha * x + self._covariance * y
        towards_beta = self._covariance * x + self._var_beta * y
        spread = x * towards_alpha + y * towards_beta + self._noise**2 / weight
        self.alpha = max(self.alpha + towards_alpha / spread * deviation, _LEAST_LATENCY_S)
        self.beta = max(self.beta + towards_beta / spread * deviation, 8 / _MOST_BPS)
        # What is not seen for long is forgotten, but never doubted more than at the start.
        self._var_alpha = min((self._var_alpha - towards_alpha**2 / spread) / _KEEP, (_DOUBT * self.alpha) ** 2)
        self._var_beta = min((self._var_beta - towards_beta**2 / spread) / _KEEP, (_DOUBT * self.beta) ** 2)
        limit = 0.99 * math.sqrt(self._var_alpha * self._var_beta)
        covariance = (self._covariance - towards_alpha * towards_beta / spread) / _KEEP
        self._covariance = min(max(covariance, -limit), limit)
