"""The tuner on emulated hosts: the second phase of c1, in which bandwidth falls to a 25th, is noticed and answered."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from headway.lab import Lab, load_scenario, possible

pytestmark = pytest.mark.lab

SCRIPT = Path(__file__).with_name("scripts") / "tuned.py"
PHASE_STEPS, NUM_STEPS = 25, 45


@pytest.mark.skipif(possible.missing() is not None, reason=str(possible.missing()))
def test_the_second_phase_of_c1_is_noticed_and_answered():
    said: list[dict] = []

    def note(_rank: int, line: str) -> None:
        if line.startswith("{"):
            said.append(json.loads(line))

    scenario = load_scenario("c1").scaled(bandwidth=0.01, time=PHASE_STEPS / 50).by_steps()  # 250 Mbps, then 10
    with Lab(3, scenario) as lab:
        result = lab.run([sys.executable, str(SCRIPT), str(NUM_STEPS)], output=note, timeout_s=100)
    assert result.exit_code == 0, result.tails
    assert said[0]["equal"]
    after = [each for each in said[0]["decisions"] if each["step"] > PHASE_STEPS]
    told = [each for each in after if each["cause"] == "bandwidth" and "bandwidth fell" in each["words"]]
    assert told, said[0]["decisions"]
    assert told[0]["step"] <= PHASE_STEPS + 15
    sent = dict.fromkeys(range(NUM_STEPS), 0)
    for step, _, _, wire_bytes in said[0]["records"]:
        sent[step] += wire_bytes
    assert sent[NUM_STEPS - 1] < 0.7 * sent[PHASE_STEPS - 1]
