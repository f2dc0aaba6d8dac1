"""``headway plan``: tables, JSON, maps, errors."""

from __future__ import annotations

import functools
import json

import pytest
from typer.testing import CliRunner

from headway.cli import app, plan_gossip, plan_tables
from headway.network import Link, Textbook

NETWORK = ["--workers", "8", "--latency", "4ms", "--bandwidth", "20gbps"]


@pytest.fixture(autouse=True, scope="module")
def measure_once():
    """Measure each speed of this machine once for all tests, with few ranks."""
    measure = functools.cache(plan_tables.measure_speed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plan_tables, "measure_speed", lambda plan, num_ranks: measure(plan, min(num_ranks, 2)))
        patch.setattr(plan_gossip, "measure_compute_s", functools.cache(plan_gossip.measure_compute_s))
        yield


def plan(*args: str):
    return CliRunner().invoke(app, ["plan", *args])


def test_the_textbook_model_as_json_has_exactly_its_formulas():
    found = plan("--params", "25.6M", *NETWORK, "--ratio", "0.01", "--compute", "28ms", "--model", "textbook", "--json")
    assert found.exit_code == 0
    data = json.loads(found.stdout)
    link = Link(latency_s=0.004, bandwidth_bps=2e10)
    book = Textbook(num_ranks=8, num_bytes=4 * 25_600_000, ratio=0.01, link=link)
    assert data["costs_ms"] == {name: pytest.approx(1e3 * seconds) for name, seconds in book.costs_s.items()}
    assert set(data["costs_ms"]) == {
        "parameter_server", "dense_ring", "dense_tree", "allgather_topk", "ar_topk_ring", "ar_topk_tree",
    }  # fmt: skip
    assert data["costs_ms"]["dense_ring"] == pytest.approx(14 * 4 + 1e3 * 1.75 * 102.4e6 * 8 / 2e10)
    assert data["best_compressed"] == "allgather_topk"
    assert data["compute_ms"] == 28
    assert data["var_all_gather_ms"] == pytest.approx(12, rel=0.01)


def test_every_option_is_in_the_json_of_the_headway_model():
    found = plan("--params", "100k", *NETWORK, "--ratio", "1%", "--json")
    (at_ratio,) = json.loads(found.stdout)["ratios"]
    assert at_ratio["ratio"] == 0.01
    assert len(at_ratio["options"]) == 5 * 8 + 4 * 5
    option = at_ratio["options"][0]
    parts = ("latency_ms", "bandwidth_ms", "overhead_ms", "computing_ms")
    assert option["ms"] == pytest.approx(sum(option[part] for part in parts))
    assert at_ratio["best"].split(" by ")[0] in {option["exchange"] for option in at_ratio["options"]}


def test_gossip_is_listed_with_the_collectives():
    arguments = ("--params", "100k", "--latency", "50ms", "--bandwidth", "10mbps", "--ratio", "1%")
    found = json.loads(plan(*arguments, "--workers", "16", "--topology", "torus", "--json").stdout)["gossip"]
    assert [option["algorithm"] for option in found] == [
        "dpsgd",
        "dcd 8 bits",
        "ecd 8 bits",
        "choco 4 bits",
        "choco sign",
    ]
    for option in found:
        parts = ("latency_ms", "bandwidth_ms", "overhead_ms", "computing_ms")
        assert option["ms"] == pytest.approx(sum(option[part] for part in parts))
        assert option["latency_ms"] == pytest.approx(50)
        assert option["bandwidth_ms"] == pytest.approx(option["wire_bytes"] * 8 / 1e4)
    assert found[0]["wire_bytes"] == 4 * (8 + 400_000)  # to four neighbours
    shown = " ".join(plan(*arguments).stdout.split())
    assert "gossip on a ring of 8, degree 2" in shown
    assert "choco 4 bits gossip, ring" in shown
    alone = plan("--params", "100k", *NETWORK, "--workers", "1", "--json")
    assert {option["ms"] for option in json.loads(alone.stdout)["gossip"]} == {0.0}


def test_local_steps_share_the_best_exchange():
    arguments = ("--params", "100k", *NETWORK, "--ratio", "1%", "--compute", "20ms")
    (at_ratio,) = json.loads(plan(*arguments, "--json").stdout)["ratios"]
    every_step, every_8, every_32 = at_ratio["local"]
    exchange = at_ratio["best"].split(" by ")[0]
    best = min((option for option in at_ratio["options"] if option["exchange"] == exchange), key=lambda o: o["ms"])
    assert every_step["ms"] == pytest.approx(best["ms"])
    assert [8 * every_8["ms"], 32 * every_32["ms"]] == pytest.approx([best["ms"]] * 2)
    assert every_8["wire_bytes"] == best["wire_bytes"] // 8
    assert 1 == every_step["effort"] < every_8["effort"] < every_32["effort"]
    shown = plan(*arguments).stdout
    (row,) = [line.split() for line in shown.splitlines() if "local, H = 8" in line]
    assert row[0] in {option["exchange"] for option in at_ratio["options"]}
    assert float(row[5]) > 20  # the computing of a step is in it
    assert f"{every_8['effort']:.2g}x at H = 8" in " ".join(shown.split())


def test_a_table_names_the_best_and_by_how_much():
    found = plan("--params", "100k", *NETWORK, "--ratio", "0.01")
    assert found.exit_code == 0
    for word in ("star_topk", "allgather_topk", "recursive_doubling", "than plain DDP", "8 workers, 4 ms, 20 Gbps"):
        assert word in " ".join(found.stdout.split())


def test_an_unknown_topology_is_one_line_and_exit_code_2():
    found = plan("--params", "100k", *NETWORK, "--topology", "line")
    assert found.exit_code == 2
    assert "topology is 'line', but must be one of ring" in found.stderr


@pytest.mark.parametrize("model", ["headway", "textbook"])
def test_without_a_ratio_the_whole_range_is_shown(model):
    found = plan("--params", "100k", *NETWORK, "--model", model)
    assert found.exit_code == 0
    assert all(f"{percent}%" in found.stdout for percent in ("0.1", "1", "10"))
    assert ("local, H = 32" in found.stdout) == (model == "headway")
    listed = plan("--params", "100k", *NETWORK, "--model", model, "--json")
    assert [each["ratio"] for each in json.loads(listed.stdout)["ratios"]] == [0.001, 0.003, 0.01, 0.03, 0.1]


def test_a_module_is_counted(tmp_path, monkeypatch):
    (tmp_path / "my_models.py").write_text("import torch\n\ndef small():\n    return torch.nn.Linear(9, 10)\n")
    monkeypatch.chdir(tmp_path)
    found = plan("--module", "my_models:small", *NETWORK, "--ratio", "0.1", "--model", "textbook", "--json")
    assert json.loads(found.stdout)["params"] == 100


@pytest.mark.parametrize("name", ["map.png", "deep/er/map.html"])
def test_a_map_is_written(tmp_path, monkeypatch, name):
    pytest.importorskip("plotly", reason="pictures need headway[plot]")
    monkeypatch.setattr("headway.cli.plan_map._LATENCIES_S", (0.001, 0.1))
    monkeypatch.setattr("headway.cli.plan_map._BANDWIDTHS_BPS", (1e7, 1e9, 1e10))
    found = plan("--params", "1M", "--workers", "4,8", "--ratio", "0.01", "--map", str(tmp_path / name))
    assert found.exit_code == 0, found.stderr
    assert (tmp_path / name).stat().st_size > 5_000


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--params", "1M", *NETWORK, "--workers", "0"], "--workers is 0"),
        (["--params", "1M", *NETWORK, "--ratio", "2"], "a share is at most 100%"),
        (["--params", "1M", *NETWORK, "--ratio", "0"], "--ratio is 0"),
        (["--params", "1M", *NETWORK, "--latency", "10 parsecs"], "'10 parsecs' is not a duration"),
        (["--params", "1M", *NETWORK, "--bandwidth", "0bps"], "--bandwidth is 0bps"),
        (["--params", "0", *NETWORK], "--params is 0"),
        (["--params", "many", *NETWORK], "'many' is not a count"),
        (["--params", "1M", "--workers", "8"], "give --latency and --bandwidth"),
        ([*NETWORK], "give --params"),
        (["--params", "1M", "--module", "a:b", *NETWORK], "one of the two"),
        (["--module", "no_such_thing:x", *NETWORK], "ModuleNotFoundError: No module named 'no_such_thing'"),
        (["--module", "torch.nn", *NETWORK], "must be package:factory"),
        (["--module", "torch.nn:Identity", *NETWORK], "has no parameters"),
        (["--params", "1M", *NETWORK, "--model", "magic"], "--model is 'magic'"),
        (["--params", "1M", "--map", "map.gif"], "must end in one of"),
        (["--params", "1M", *NETWORK, "--map", "map.png"], "--map goes with neither"),
        (["--params", "1M", *NETWORK, "--workers", "600"], "at most 512"),
        (["--module", "builtins:dict", *NETWORK], "AttributeError: 'dict' object has no attribute 'parameters'"),
        (["--params", "1M", *NETWORK, "--workers", "4,8"], "several are for --map"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(args, message):
    found = plan(*args)
    assert found.exit_code == 2
    assert message in found.stderr
    assert found.stderr.count("\n") == 1
    assert found.stdout == ""
