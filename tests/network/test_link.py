"""The link model."""

from __future__ import annotations

import pytest

from headway.network import Link


def test_a_link_is_latency_and_bandwidth():
    assert Link(latency_s=0.01, bandwidth_bps=8e6).seconds(1_000_000) == pytest.approx(1.01)


@pytest.mark.parametrize(
    ("latency_s", "bandwidth_bps", "message"),
    [(-1, 1e9, "latency_s is -1"), (float("nan"), 1e9, "latency_s is nan"), (0, 0, "bandwidth_bps is 0")],
)
def test_an_impossible_link_is_rejected(latency_s, bandwidth_bps, message):
    with pytest.raises(ValueError, match=message):
        Link(latency_s=latency_s, bandwidth_bps=bandwidth_bps)


@pytest.mark.parametrize(
    ("latency_s", "bandwidth_bps", "moved"),
    [(0.0109, 1.09e8, False), (0.0091, 0.91e8, False), (0.0112, 1e8, True), (0.0088, 1e8, True), (0.01, 1.2e8, True),
     (0.01, 0.8e8, True)],
)  # fmt: skip
def test_a_link_has_moved_when_latency_or_bandwidth_differs_by_more_than_a_tenth(latency_s, bandwidth_bps, moved):
    before = Link(latency_s=0.01, bandwidth_bps=1e8)
    assert Link(latency_s=latency_s, bandwidth_bps=bandwidth_bps).has_moved(before) == moved


def test_any_latency_is_a_move_from_none():
    assert Link(latency_s=1e-6, bandwidth_bps=1e8).has_moved(Link(latency_s=0.0, bandwidth_bps=1e8))
