"""docs/extending.md, carried out: what it defines works everywhere, without another edit."""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch.nn.parallel import DistributedDataParallel
from typer.testing import CliRunner

import headway
from headway._plugins import load_plugins
from headway.cli import app
from headway.collectives import ALGORITHMS, Collective, Transfer, make_schedule, register_algorithm
from headway.exchange import EXCHANGES, Traffic, unregister
from headway.gossip import register_topology
from headway.report import Recorder, read_run, write_page
from headway.tuner import contenders
from tests.ddp.training import Ledger, bits, loss_of, mlp, parameters_of, step_once
from tests.tuner.virtual_run import NARROW, VirtualRun

PAGE = Path(__file__).parent.parent / "docs" / "extending.md"
MODULE = "own_exchange"
NAME = "one_bit"


def code_of_the_exchange() -> str:
    return next(block for block in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S) if "@register" in block)


def load(path: Path) -> None:
    """Import the module of the page, as a user's own script would."""
    spec = importlib.util.spec_from_file_location(MODULE, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[MODULE] = module
    spec.loader.exec_module(module)


@pytest.fixture
def own_exchange(tmp_path: Path) -> Iterator[Path]:
    """The exchange of the page, registered for a test."""
    path = tmp_path / f"{MODULE}.py"
    path.write_text(code_of_the_exchange())
    load(path)
    yield path
    unregister(NAME)


def test_a_new_exchange_takes_fewer_than_40_lines():
    assert len(code_of_the_exchange().strip().splitlines()) < 40


def train(path: Path) -> dict:
    load(path)
    try:
        ddp = DistributedDataParallel(mlp(), bucket_cap_mb=0.001)
        link = headway.Link(latency_s=0.001, bandwidth_bps=1e8)
        handle = headway.attach(ddp, headway.Fixed(exchange=NAME, link=link, timeout_s=20))
        optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05)
        ledger = Ledger(ddp, handle)
        recorder = Recorder(path.parent / "run", handle, {"method": "mine"})
        for step in range(12):
            ledger.give(lambda model, step=step: loss_of(model, step))
            loss = step_once(ddp, optimizer, step)
            ledger.apply()
            recorder.step(loss=loss)
        recorder.close()
        seen = {
            "parameters": bits(parameters_of(ddp)),
            "lost": ledger.lost(),
            "used": {record.exchange for record in handle.records if record.step >= 2},
            "saved": handle.statistics().exchanges[NAME].saved,
        }
        handle.close()
        return seen
    finally:
        unregister(NAME)


@pytest.mark.pool
def test_it_trains_bitwise_equal_on_all_ranks_and_is_drawn_in_the_report(pool, own_exchange):
    first, *others = pool.run(train, own_exchange, num_ranks=3)
    assert all(other["parameters"] == first["parameters"] for other in others)
    assert first["used"] == {NAME}
    assert first["lost"] < 1e-5
    assert first["saved"] > 0.9
    page = own_exchange.parent / "report.html"
    write_page([read_run(own_exchange.parent / "run")], page)
    drawn = page.read_text()
    assert "1-bit sign" in drawn
    assert f"--exchange-{NAME}:" in drawn


def test_it_appears_in_headway_plan_and_in_the_regime_map(own_exchange):
    options = ["plan", "--params", "1M", "--workers", "4", "--latency", "1ms", "--bandwidth", "100mbps"]
    shown = [CliRunner().invoke(app, [*options, "--ratio", "0.01"])]
    assert NAME in contenders()
    unregister(NAME)
    shown.append(CliRunner().invoke(app, [*options, "--ratio", "0.01"]))
    assert [result.exit_code for result in shown] == [0, 0], shown[0].output
    assert [NAME in result.output for result in shown] == [True, False]


def test_the_tuner_chooses_it_when_it_is_made_cheap(own_exchange):
    """The tuner knows nothing of it but its description and its traffic."""
    candidates = ("dense", "allgather_topk", NAME)
    assert VirtualRun(4, lambda _: NARROW, exchanges=candidates).play(12).plans[-1][0].exchange != NAME
    own = EXCHANGES[NAME]
    own.traffic = lambda self, shape, _: [Traffic(Collective.ALL_GATHER, self.plan.algorithm, shape.numel // 1000)]
    run = VirtualRun(4, lambda _: NARROW, exchanges=candidates).play(12)
    assert run.plans[-1][0].exchange == NAME
    assert "-> 1-bit sign" in run.ranks[0].decisions[0].words


def test_a_plugin_is_imported_before_the_command(own_exchange, monkeypatch):
    unregister(NAME)
    sys.modules.pop(MODULE)
    monkeypatch.setenv("HEADWAY_PLUGINS", "")
    monkeypatch.syspath_prepend(str(own_exchange.parent))
    result = CliRunner().invoke(app, ["--plugin", MODULE, "emulate", "--list"])
    assert result.exit_code == 0, result.output
    assert NAME in EXCHANGES
    unregister(NAME)
    sys.modules.pop(MODULE)
    load_plugins()  # as a worker of the command does
    assert NAME in EXCHANGES


def test_a_plugin_that_cannot_be_imported_is_reported_in_a_sentence(monkeypatch):
    monkeypatch.setenv("HEADWAY_PLUGINS", "")
    result = CliRunner().invoke(app, ["--plugin", "no_such_module", "emulate", "--list"])
    assert result.exit_code == 2
    assert "headway: plugin no_such_module: ModuleNotFoundError" in result.output


def test_an_algorithm_that_is_wrong_is_not_registered():
    def forgets_rank_1(num_ranks: int):
        rounds = [[Transfer(r, 0, 0, 1, reduce=True) for r in range(2, num_ranks)]]
        return make_schedule(Collective.ALL_REDUCE, "forgets_rank_1", num_ranks, 1, rounds)

    with pytest.raises(ValueError, match="rank 0, at the end, chunk 0"):
        register_algorithm(Collective.ALL_REDUCE, forgets_rank_1)
    assert "forgets_rank_1" not in ALGORITHMS[Collective.ALL_REDUCE]


def test_names_that_are_taken_are_rejected():
    def ring(num_ranks: int):
        return ALGORITHMS[Collective.ALL_REDUCE]["tree"](num_ranks)

    with pytest.raises(ValueError, match="has an algorithm 'ring' already"):
        register_algorithm(Collective.ALL_REDUCE, ring)
    with pytest.raises(ValueError, match="there is a topology 'ring' already"):
        register_topology("ring", lambda num_ranks: ())
    with pytest.raises(ValueError, match="no path leads from rank 0"):
        register_topology("apart", lambda num_ranks: ((),) * num_ranks)
