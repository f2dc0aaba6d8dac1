"""Gossip on emulated hosts and a poor network: nobody is given up for it, and statistics say what the wire has seen."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from headway.lab import Lab, Link, Scenario, possible

pytestmark = pytest.mark.lab

SCRIPT = Path(__file__).with_name("scripts") / "slow.py"
MODEL_BYTES = 4 * (350 * 350 + 350)
TIMEOUT_S = 1.5


@pytest.mark.skipif(possible.missing() is not None, reason=str(possible.missing()))
def test_a_message_that_takes_longer_than_the_deadline_does_not_cost_a_neighbour():
    """Both ends wait, and say so on another connection than the message is on."""
    said: dict[int, tuple[float, int, int]] = {}

    def note(rank: int, line: str) -> None:
        if line.startswith("longest "):
            _, seconds, _, num_events, _, num_bytes = line.split()
            said[rank] = (float(seconds), int(num_events), int(num_bytes))

    with Lab(3, Scenario(link=Link(latency_s=0.005, bandwidth_bps=4e6))) as lab:
        result = lab.run([sys.executable, str(SCRIPT), str(TIMEOUT_S)], output=note, timeout_s=90)
    assert result.exit_code == 0, result.tails
    assert len(said) == 3
    for longest_s, num_events, num_bytes in said.values():
        assert longest_s > TIMEOUT_S
        assert num_events == 0
        assert num_bytes == 4 * 2 * (8 + MODEL_BYTES)  # 4 steps, 2 neighbours
    first_models = 2 * MODEL_BYTES  # rank 0 gives its own to all
    assert int(result.counters.num_bytes.sum()) == pytest.approx(
        first_models + sum(s[2] for s in said.values()), rel=0.08
    )
