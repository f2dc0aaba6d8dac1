"""Executors on emulated hosts: over a slow line a rank is not lost, one whose host is cut off is.

No one file of the package is tested here, but who is waited for, and who is lost.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headway.lab import Event, Lab, LinkSpec, Scenario, When, possible
from tests.forked import command

pytestmark = [
    pytest.mark.lab,
    pytest.mark.filterwarnings("ignore::headway.lab.SaturationWarning"),  # the machine that tests may be busy
    pytest.mark.skipif(possible.missing() is not None, reason=str(possible.missing())),
]

SCRIPT = Path(__file__).with_name("scripts") / "patient.py"
TIMEOUT_S = 3.0
"""Less than a transfer over the slow line takes; but answers must come in time on a busy machine, too."""
CUT_OFF, CUT_TIMEOUT_S = 1, 4.0


def run(num_ranks: int, scenario: Scenario, *args: str) -> dict[int, dict]:
    said: dict[int, dict] = {}

    def note(rank: int, line: str) -> None:
        if line.startswith("{"):
            said[rank] = json.loads(line)

    with Lab(num_ranks, scenario) as lab:
        result = lab.run(command(SCRIPT, *args), output=note, timeout_s=60)
    assert result.exit_code == 0, result.tails
    return said


@pytest.mark.parametrize("algorithm", ["ring", "native"])
def test_a_transfer_may_take_longer_than_the_timeout(algorithm):
    """1 MB at 2 Mbps takes 4 s: each of two ranks sends half of it twice."""
    slow = Scenario(link=LinkSpec(latency_s=0.01, bandwidth_bps=2e6))
    for saw in run(2, slow, algorithm, "250000", str(TIMEOUT_S), "none").values():
        assert saw["sum"] == 2.0
        assert saw["seconds"] > TIMEOUT_S


def test_a_rank_whose_host_is_cut_off_is_named_by_all_others():
    cut = Event(kind="cut", ranks=(CUT_OFF,), start=When(at_step=1), duration_s=100.0)
    scenario = Scenario(link=LinkSpec(latency_s=0.01, bandwidth_bps=1e8), events=(cut,))
    seen = run(3, scenario, "ring", "10", str(CUT_TIMEOUT_S), "cut")
    for rank in (0, 2):
        assert seen[rank]["lost"] == [CUT_OFF]
        assert seen[rank]["message"].startswith(f"no answer from rank 1 within {CUT_TIMEOUT_S:g} s")
    assert seen[CUT_OFF]["lost"] == [0, 2]
