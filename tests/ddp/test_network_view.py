"""The link, followed while a model trains."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import headway
from headway.lab import Lab, load_scenario, possible
from tests.ddp.training import mlp, step_once, wrap

SCRIPTS = Path(__file__).with_name("scripts")


def train_and_look(options: dict) -> list:
    """Return what is known after each step."""
    ddp = wrap(mlp())
    handle = headway.attach(ddp, headway.Fixed(**{"exchange": "allgather_topk", "timeout_s": 20, **options}))
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05)
    seen = []
    for step in range(12):
        step_once(ddp, optimizer, step)
        seen.append(handle.network)
    handle.close()
    return seen


@pytest.mark.pool
def test_all_ranks_know_the_same_after_every_step(pool):
    first, *others = pool.run(train_and_look, {"interval": 3}, num_ranks=3)
    assert all(other == first for other in others)
    assert first[0] == first[4] != first[-1]
    link = first[-1].estimate.link
    assert 0 < link.latency_s < 0.1
    assert first[-1].estimate.latency_error <= first[0].estimate.latency_error  # known anew, if it was shorter at last


def which_are_reported() -> list[tuple[int, str, str]]:
    """Return step, exchange and algorithm of all records that went into councils."""
    ddp = wrap(mlp())
    handle = headway.attach(ddp, headway.Fixed(algorithm="native", fusion="bucket", interval=3, timeout_s=20))
    reported, start = [], handle._monitor.start

    def note(step, records):
        reported.extend((record.step, record.exchange, record.algorithm) for record in records if record.was_alone)
        start(step, records)

    handle._monitor.start = note
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05)
    for step in range(8):
        step_once(ddp, optimizer, step)
    handle.close()
    return reported


@pytest.mark.pool
def test_plain_sums_follow_each_other_in_the_step_before_a_council(pool):
    reported = pool.run(which_are_reported, num_ranks=2)[0]
    assert {step for step, *_ in reported} >= {2, 5}
    assert {tuple(kind) for _, *kind in reported} == {("dense", "native")}


@pytest.mark.pool
@pytest.mark.parametrize("options", [{"interval": 0}, {"link": headway.Link(latency_s=0.01, bandwidth_bps=1e8)}])
def test_nobody_looks_if_told_so(pool, options):
    assert pool.run(train_and_look, options, num_ranks=2) == [[None] * 12] * 2


@pytest.mark.pool
def test_alone_there_is_nothing_to_know(pool):
    assert pool.run(train_and_look, {}, num_ranks=1) == [[None] * 12]


def go_back_with_a_council_under_way() -> list:
    """Load an early state in the step after one in which a council began; return the views from then on."""
    ddp = wrap(mlp())
    handle = headway.attach(ddp, headway.Fixed(exchange="allgather_topk", interval=4, timeout_s=20))
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05)
    for step in range(9):
        if step == 3:
            state = handle.state_dict()
        step_once(ddp, optimizer, step)
    handle.load_state_dict(state)
    views = [handle.network]
    for step in range(3, 8):
        step_once(ddp, optimizer, step)
        views.append(handle.network)
    handle.close()
    return views


@pytest.mark.pool
def test_councils_go_on_after_going_back_to_an_earlier_state(pool):
    first, second = pool.run(go_back_with_a_council_under_way, num_ranks=2)
    assert first == second
    assert first[-1] != first[0]


def test_leaving_in_the_middle_of_a_council_neither_hangs_nor_crashes(tmp_path):
    command = [sys.executable, str(SCRIPTS / "parting.py"), str(tmp_path / "store")]
    ranks = [
        subprocess.Popen([*command, str(rank), "3"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for rank in range(3)
    ]
    try:
        for rank in ranks:
            output, errors = rank.communicate(timeout=60)
            assert (rank.returncode, output) == (0, "done\n"), errors
    finally:
        for rank in ranks:
            rank.kill()


@pytest.mark.lab
@pytest.mark.skipif(possible.missing() is not None, reason=str(possible.missing()))
def test_every_phase_of_c1_is_noticed_and_known_twenty_exchanges_later():
    scenario = load_scenario("c1").scaled(bandwidth=0.04, time=0.5).by_steps()
    found: list[tuple[float, float, list[str]]] = []

    def collect(_rank: int, line: str) -> None:
        if line.startswith("view "):
            found.append(json.loads(line.removeprefix("view ")))

    command = [sys.executable, str(SCRIPTS / "followed.py"), json.dumps([24, 47, 72, 97])]
    with Lab(2, scenario) as lab:
        result = lab.run(command, output=collect, timeout_s=120)
    assert result.exit_code == 0, result.tails
    # Generous: the machine that tests may be busy. benchmarks/estimates.py has the limits.
    assert [row[0] for row in found[2:]] == pytest.approx([0.05, 0.05], rel=0.3)
    assert [row[1] for row in found[1:3]] == pytest.approx([40e6, 40e6], rel=0.3)
    assert min(found[0][1], found[3][1]) > 4 * found[2][1]
    assert max(row[0] for row in found[:2]) < 0.02
    assert {"latency", "bandwidth"} <= set(found[-1][2])
