"""What the network is now, and when it changed, from the traffic itself."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from headway.network.changes import ChangeDetector
from headway.network.least_squares import LinkFit, Observation
from headway.network.link import Link

_NUM_LEARNING = 6
"""So many observations after a start are for learning, and raise no alarm."""
_LEAST_REPLAYED, _MOST_REPLAYED = 3, 8
"""After a change the latest observations are taken in again, as many as the suspicion rested on."""
_CLEAR_SHARE = 0.5
"""An observation tells of α if α makes up so much of it, and likewise of β."""
_FOLLOW = 0.02
"""How fast the usual value, from which changes are told, follows the estimate."""


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """The link, and how well it is known."""

    link: Link
    latency_error: float
    """The relative standard error of α."""
    bandwidth_error: float
    """The relative standard error of β."""


@dataclass(frozen=True, kw_only=True)
class Change:
    """A lasting move of the link."""

    observation: int
    """The number of the observation that made it certain."""
    what: str
    """"latency" or "bandwidth"."""
    before: Link
    after: Link


class Estimator:
    """Follows a link by recursive least squares, and raises a change when α or β has moved by 10% or more for good.

    An observation in which α makes up half or more of the time speaks for α, and likewise for β. A move that is
    certain makes both be learned anew, first from the observations that it rested on.

    Args:
        first: What a probe has found, or a guess.

    >>> estimator = Estimator(Link(latency_s=0.01, bandwidth_bps=1e8))
    >>> for _ in range(20):
    ...     _ = estimator.observe(Observation(rounds=1, num_bytes=0, seconds=0.02))
    ...     _ = estimator.observe(Observation(rounds=2, num_bytes=1e6, seconds=0.04 + 0.16))
    >>> link = estimator.estimate.link
    >>> round(link.latency_s, 3), round(link.bandwidth_bps / 1e6)
    (0.02, 50)
    """

    def __init__(self, first: Link) -> None:
        self.num_observations = 0
        self._fit = LinkFit(first)
        self._watches = {"latency": _Watch(), "bandwidth": _Watch()}

    @property
    def estimate(self) -> Estimate:
        """The link as it is now."""
        fit = self._fit
        return Estimate(link=fit.link, latency_error=fit.latency_error, bandwidth_error=fit.bandwidth_error)

    def observe(self, observation: Observation) -> Change | None:
        """Take an observation in; return the change that it makes certain, if it does."""
        self.num_observations += 1
        moved = self._find_move(observation)
        if moved is not None:
            return self._start_over(moved)
        self._fit.learn(observation)
        self._watches["latency"].follow(self._fit.alpha)
        self._watches["bandwidth"].follow(self._fit.beta)
        return None

    def expect_other_traffic(self) -> None:
        """Tell that exchanges are of another kind from now on: a misfit of the model is not a change of the network."""
        self._watches["bandwidth"].restart()
        self._fit.doubt_bandwidth()

    def _find_move(self, observation: Observation) -> str | None:
        """Return which of the two has moved for certain, if one has, from what was usual."""
        parts_s = {
            "latency": observation.rounds * (self._watches["latency"].usual or self._fit.alpha),
            "bandwidth": observation.num_bytes * (self._watches["bandwidth"].usual or self._fit.beta),
        }
        expected_s = sum(parts_s.values())
        for what, part_s in parts_s.items():
            deviation = (observation.seconds - expected_s) / part_s if part_s >= _CLEAR_SHARE * expected_s else None
            if deviation is not None and self._watches[what].raises(observation, deviation):
                return what
        return None

    def _start_over(self, what: str) -> Change:
        """Learn both anew from the latest observations: those of the other one were read with this one wrong."""
        before = self._fit.link
        self._fit.doubt_latency()
        self._fit.doubt_bandwidth()
        num_replayed = max(self._watches[what].detector.num_suspicious, _LEAST_REPLAYED)
        for watch in self._watches.values():
            for observation in list(watch.recent)[-num_replayed:]:
                self._fit.learn_surely(observation)
            watch.restart()
        return Change(observation=self.num_observations, what=what, before=before, after=self._fit.link)


@dataclass
class _Watch:
    """Looks for a change of one of the two."""

    detector: ChangeDetector = field(default_factory=ChangeDetector)
    recent: deque[Observation] = field(default_factory=lambda: deque(maxlen=_MOST_REPLAYED))
    num_to_learn: int = _NUM_LEARNING
    usual: float | None = None
    """What it has been for long; None while that is being learned."""

    def raises(self, observation: Observation, deviation: float) -> bool:
        """Take in an observation that tells of it; return whether it has changed."""
        self.recent.append(observation)
        if self.num_to_learn > 0:
            self.num_to_learn -= 1
            return False
        return self.usual is not None and self.detector.observe(deviation)

    def follow(self, estimate: float) -> None:
        """Go after the estimate, slowly, once that is worth it, and not while a change is suspected."""
        if self.num_to_learn > 0:
            return
        if self.usual is None:
            self.usual = estimate
        elif self.detector.num_suspicious == 0:
            self.usual += _FOLLOW * (estimate - self.usual)

    def restart(self) -> None:
        """Learn first, then watch."""
        self.num_to_learn = _NUM_LEARNING
        self.usual = None
        self.detector.restart()
