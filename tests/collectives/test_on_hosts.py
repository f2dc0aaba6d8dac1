"""Collectives on emulated hosts: right over a real network, and of the size their schedule says."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from headway.lab import Lab, Link, Scenario, possible

pytestmark = pytest.mark.lab

SCRIPT = Path(__file__).with_name("scripts") / "count.py"


@pytest.mark.skipif(possible.missing() is not None, reason=str(possible.missing()))
@pytest.mark.parametrize("algorithm", ["ring", "two_shot", "one_shot"])
def test_the_bytes_on_the_wire_are_those_of_the_schedule(algorithm):
    stated: dict[int, int] = {}

    def note(rank: int, line: str) -> None:
        if line.startswith("sent "):
            stated[rank] = int(line.removeprefix("sent "))

    with Lab(4, Scenario(link=Link(latency_s=0.005, bandwidth_bps=500e6))) as lab:
        command = [sys.executable, str(SCRIPT), algorithm, "250000", "4"]
        result = lab.run(command, output=note, timeout_s=60)
    assert result.exit_code == 0, result.tails
    counted = result.counters.num_bytes.sum(axis=1)
    for rank in range(4):
        assert stated[rank] > 1_000_000
        assert counted[rank] == pytest.approx(stated[rank], rel=0.05)
