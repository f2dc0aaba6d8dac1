"""The live estimate, on a virtual clock: scripted links, seeded noise, no waiting."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from headway.network import Change, Estimator, Link, Observation

NUM_RANKS = 8
JITTER = 0.1
BEFORE = Link(latency_s=0.02, bandwidth_bps=1e8)


@dataclass
class Traffic:
    """Observations: the latency of a control round, then an exchange of two rounds, ``share`` of it for bytes."""

    seed: int
    share: float = 0.8
    jitter: float = JITTER

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)
        self._num_bytes = self.share / (1 - self.share) * 2 * BEFORE.latency_s * BEFORE.bandwidth_bps / 8

    def over(self, link: Link) -> tuple[float, Observation]:
        """Return what the fastest rank saw of both."""
        alpha, beta = link.latency_s, 8 / link.bandwidth_bps
        n = self._num_bytes
        latency_s = min(alpha * self._noise() for _ in range(NUM_RANKS))
        exchange_s = min(2 * alpha * self._noise() + n * beta * self._noise() for _ in range(NUM_RANKS))
        return latency_s, Observation(rounds=2, num_bytes=n, seconds=exchange_s)

    def _noise(self) -> float:
        return 1 + self._random.uniform(-self.jitter, self.jitter)


def feed(estimator: Estimator, traffic: Traffic, link: Link, times: int) -> Iterator[tuple[int, Change]]:
    """Yield the reported changes, and after how many control rounds."""
    for number in range(times):
        latency_s, transfer = traffic.over(link)
        for change in (estimator.observe_latency(latency_s), estimator.observe(transfer)):
            if change is not None:
                yield number, change


def settled(traffic: Traffic) -> Estimator:
    estimator = Estimator(Link(latency_s=0.03, bandwidth_bps=5e7))
    list(feed(estimator, traffic, BEFORE, 200))
    return estimator


def test_a_constant_link_raises_at_most_one_false_alarm_in_a_thousand_observations():
    alarms, num_observations = 0, 0
    for seed in range(10):
        traffic = Traffic(seed)
        estimator = settled(traffic)
        alarms += len(list(feed(estimator, traffic, BEFORE, 500)))
        num_observations += 1000
    assert alarms <= num_observations / 1000


@pytest.mark.parametrize("what", ["latency", "bandwidth"])
@pytest.mark.parametrize("move", [1.1, 0.9, 1.5, 0.04, 25.0])
def test_a_lasting_move_is_noticed_within_five_observations(what, move):
    for seed in range(20):
        traffic = Traffic(seed)
        estimator = settled(traffic)
        latency_s = BEFORE.latency_s * (move if what == "latency" else 1)
        after = Link(latency_s=latency_s, bandwidth_bps=BEFORE.bandwidth_bps / (move if what == "bandwidth" else 1))
        _, change = next(feed(estimator, traffic, after, 5))
        assert change.before.latency_s == pytest.approx(BEFORE.latency_s, rel=0.12)


@pytest.mark.parametrize("move", [(1.1, 1), (50, 1), (1, 1.1), (1, 25), (0.02, 0.04), (50, 0.04)])
def test_the_estimate_is_right_twenty_exchanges_after_a_move(move):
    after = Link(latency_s=BEFORE.latency_s * move[0], bandwidth_bps=BEFORE.bandwidth_bps / move[1])
    for seed in range(10):
        traffic = Traffic(seed)
        estimator = settled(traffic)
        list(feed(estimator, traffic, after, 20))
        estimate = estimator.estimate
        assert estimate.link.latency_s == pytest.approx(after.latency_s, rel=0.2)
        if move[1] / move[0] > 0.2:  # where bytes still make a noticeable part of the time
            assert estimate.link.bandwidth_bps == pytest.approx(after.bandwidth_bps, rel=0.2)


def test_what_is_seen_is_known_better_than_what_is_not():
    estimator = Estimator(BEFORE)
    first = estimator.estimate
    for _ in range(50):
        estimator.observe_latency(BEFORE.latency_s)
    estimate = estimator.estimate
    assert estimate.latency_error < 0.05 < first.latency_error
    assert estimate.bandwidth_error == pytest.approx(first.bandwidth_error)


def test_two_outliers_neither_raise_a_change_nor_move_the_estimate():
    traffic = Traffic(0)
    estimator = settled(traffic)
    before = estimator.estimate.link
    for slow in (10.0, 30.0):
        assert estimator.observe_latency(slow * BEFORE.latency_s) is None
    after = estimator.estimate.link
    assert after.latency_s == pytest.approx(before.latency_s, rel=0.1)
    assert list(feed(estimator, traffic, BEFORE, 100)) == []


def test_a_slow_drift_is_followed():
    traffic = Traffic(0)
    estimator = settled(traffic)
    link = BEFORE
    for _ in range(200):
        link = Link(latency_s=link.latency_s * 1.005, bandwidth_bps=link.bandwidth_bps)
        list(feed(estimator, traffic, link, 1))
    assert estimator.estimate.link.latency_s == pytest.approx(link.latency_s, rel=0.2)


def test_other_traffic_that_fits_the_model_less_well_is_not_a_change_of_the_network():
    traffic, other = Traffic(0), Traffic(1)
    estimator = settled(traffic)
    estimator.expect_other_traffic()
    misfit = Link(latency_s=BEFORE.latency_s, bandwidth_bps=BEFORE.bandwidth_bps / 1.3)
    assert [change.what for _, change in feed(estimator, other, misfit, 100)] == []


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"rounds": 2, "num_bytes": 0, "seconds": 1.0}, "2 rounds of 0 bytes are not a transfer"),
        ({"rounds": -1, "num_bytes": 9, "seconds": 1.0}, "-1 rounds"),
        ({"rounds": 1, "num_bytes": 9, "seconds": float("nan")}, "seconds is nan"),
    ],
)
def test_an_impossible_observation_is_rejected(fields, message):
    with pytest.raises(ValueError, match=message):
        Observation(**fields)


def test_a_noisy_link_is_seldom_suspected():
    """A suspected change makes control rounds more frequent: noise alone must not do that."""
    traffic = Traffic(0, jitter=0.3)
    estimator = settled(traffic)
    suspected = 0
    for _ in range(500):
        list(feed(estimator, traffic, BEFORE, 1))
        suspected += estimator.is_suspicious
    assert suspected < 100


@pytest.mark.parametrize("seed", range(5))
def test_a_start_under_gaussian_noise_raises_few_false_alarms(seed):
    source = random.Random(seed)
    estimator = Estimator(BEFORE)
    alarms = sum(estimator.observe_latency(0.02 * (1 + source.gauss(0, 0.1))) is not None for _ in range(300))
    assert alarms <= 3


def test_small_transfers_say_nothing_about_bandwidth():
    """Thread wake-ups dominate their time."""
    estimator = Estimator(BEFORE)
    for _ in range(100):
        assert estimator.observe(Observation(rounds=1, num_bytes=6_000, seconds=0.05)) is None
    assert estimator.estimate.link.bandwidth_bps == pytest.approx(BEFORE.bandwidth_bps)


def test_a_latency_that_falls_is_known_at_once_whatever_the_noise_was():
    source = random.Random(0)
    estimator = Estimator(BEFORE)
    for _ in range(50):
        estimator.observe_latency(0.032 * (1 + source.uniform(0, 1)))
    for _ in range(3):
        estimator.observe_latency(0.016)
    assert estimator.estimate.link.latency_s == pytest.approx(0.016, rel=0.1)
