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
def test_a_link_that_cannot_be_is_refused(latency_s, bandwidth_bps, message):
    with pytest.raises(ValueError, match=message):
        Link(latency_s=latency_s, bandwidth_bps=bandwidth_bps)
