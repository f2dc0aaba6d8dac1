"""The hook on emulated hosts: what the records say is what the wire has seen."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from headway.lab import Lab, Link, Scenario, possible

pytestmark = pytest.mark.lab

SCRIPT = Path(__file__).with_name("scripts") / "count.py"
MODEL_BYTES = 4 * (500 * 600 + 600 + 600 * 300 + 300)


@pytest.mark.skipif(possible.missing() is not None, reason=str(possible.missing()))
@pytest.mark.parametrize(
    ("exchange", "algorithm", "fusion"),
    [("allgather_topk", "one_shot", "step"), ("star_topk", "two_shot", "bucket")],
)
def test_records_and_wire_agree(exchange, algorithm, fusion):
    stated: dict[int, int] = {}

    def note(rank: int, line: str) -> None:
        if line.startswith("sent "):
            stated[rank] = int(line.removeprefix("sent "))

    with Lab(4, Scenario(link=Link(latency_s=0.005, bandwidth_bps=5e8))) as lab:
        result = lab.run([sys.executable, str(SCRIPT), exchange, algorithm, fusion], output=note, timeout_s=90)
    assert result.exit_code == 0, result.tails
    # DDP sends the model from rank 0 when it is made, and Gloo's broadcast passes it on: taken off by what it adds
    # in all.
    counted = int(result.counters.num_bytes.sum()) - 3 * MODEL_BYTES
    assert counted == pytest.approx(sum(stated.values()), rel=0.05)
