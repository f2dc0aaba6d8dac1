"""`handle.network`: the link, followed while a model trains. No one file of this folder is tested here."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import headway
from tests.ddp.training import mlp, step_once, wrap
from tests.forked import ForkedScripts

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
    assert 0 < first[-1].estimate.latency_error < 1


def which_are_reported() -> list[tuple[int, str, str]]:
    """Return step, exchange and algorithm of the records of exchanges that ran alone: only these are reported."""
    ddp = wrap(mlp())
    handle = headway.attach(ddp, headway.Fixed(algorithm="native", fusion="bucket", interval=3, timeout_s=20))
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05)
    for step in range(8):
        step_once(ddp, optimizer, step)
    records = [record for record in handle.records if record.was_alone]
    handle.close()
    return [(record.step, record.exchange, record.algorithm) for record in records]


@pytest.mark.pool
def test_plain_sums_follow_each_other_in_the_step_before_a_control_round(pool):
    reported = pool.run(which_are_reported, num_ranks=2)[0]
    assert {step for step, *_ in reported} >= {2, 5}
    assert {tuple(kind) for _, *kind in reported} == {("dense", "native")}


@pytest.mark.pool
@pytest.mark.parametrize("options", [{"interval": 0}, {"link": headway.Link(latency_s=0.01, bandwidth_bps=1e8)}])
def test_the_network_is_not_followed_without_an_interval_or_with_a_given_link(pool, options):
    assert pool.run(train_and_look, options, num_ranks=2) == [[None] * 12] * 2


@pytest.mark.pool
def test_alone_there_is_nothing_to_know(pool):
    assert pool.run(train_and_look, {}, num_ranks=1) == [[None] * 12]


def go_back_with_a_control_round_under_way() -> list:
    """Load an early state in the step after one in which a control round began; return the views from then on."""
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
def test_control_rounds_go_on_after_going_back_to_an_earlier_state(pool):
    first, second = pool.run(go_back_with_a_control_round_under_way, num_ranks=2)
    assert first == second
    assert first[-1] != first[0]


def test_leaving_in_the_middle_of_a_control_round_neither_hangs_nor_crashes(tmp_path):
    with ForkedScripts(tmp_path) as scripts:
        for rank in range(3):
            scripts.start(SCRIPTS / "parting.py", str(tmp_path / "store"), str(rank), "3")
        assert scripts.outputs([0, 1, 2], timeout_s=60) == dict.fromkeys(range(3), "done\n")
        assert scripts.exit_codes() == [0, 0, 0]
