"""``headway train`` as a user runs it: local workers, torchrun, a lab, Ctrl-C, errors."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from headway.cli import app
from headway.cli.train_screen import TrainScreen
from headway.lab import possible
from headway.report import read_run
from headway.report.events import VERSION
from headway.train import launch, session
from tests import forked

SCRIPT = Path(__file__).parent / "scripts" / "train.py"
SMALL = ("--model", "mlp", "--eval-every", "20")


@pytest.fixture
def headway(forked_python):
    """Run ``headway train``; the test of Ctrl-C starts it, and its workers, without forking."""

    def run(*args, timeout_s=90.0):
        command = forked.command(SCRIPT, forked_python, "train", *map(str, args))
        return subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)

    return run


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch, tmp_path):
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)


def test_two_local_workers_train_and_leave_a_run_directory(tmp_path, headway):
    folder = tmp_path / "run"
    found = headway(*SMALL, "--method", "allgather_topk", "--steps", 25, "--tensorboard", "--json", "--output", folder)
    assert found.returncode == 0, found.stderr
    (row,) = json.loads(found.stdout)
    assert (row["name"], row["num_steps"], row["status"]) == ("allgather_topk", 25, "finished")
    assert row["saved"] > 0.8
    run = read_run(folder)
    assert run.start["version"] == VERSION
    assert run.start["num_ranks"] == 2
    assert run.steps[-1]["loss"] < run.steps[0]["loss"]
    assert [event["step"] for event in run.evaluations] == [20, 25]
    assert len(list((folder / "tensorboard").iterdir())) == 1
    assert len(list((folder / "checkpoints" / "step-00000025").glob("rank-?.pt"))) == 2
    for words in ("2 workers, mlp of 269,322 parameters", "step 20: accuracy", f"headway report {folder}"):
        assert words in found.stderr


def test_ctrl_c_saves_a_checkpoint_and_the_run_can_be_resumed(tmp_path, headway):
    folder = tmp_path / "run"
    command = [sys.executable, "-m", "headway", "train", *SMALL, "--method", "gossip-dcd", "--steps", "100000"]
    process = subprocess.Popen([*command, "--output", str(folder)], stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    while not _num_steps(folder) > 5 and time.monotonic() < deadline:
        time.sleep(0.05)
    assert _num_steps(folder) > 5
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert f"continue with: headway train --resume {folder}" in said
    stopped = read_run(folder)
    assert stopped.end["reason"] == "stopped"
    num_steps = len(stopped.steps)
    found = headway("--resume", folder, "--steps", num_steps + 5)
    assert found.returncode == 0, found.stderr
    assert f"step {num_steps} of {num_steps + 5}: resumed from here" in found.stderr
    run = read_run(folder)
    assert [step["step"] for step in run.steps] == list(range(1, num_steps + 6))
    assert run.steps[num_steps]["time_s"] > stopped.steps[-1]["time_s"]
    with pytest.raises(ValueError, match=f"has finished its {num_steps + 5} steps: give a larger --steps"):
        session.resume(folder, None, None, TrainScreen)


def _num_steps(folder: Path) -> int:
    path = folder / "events.jsonl"
    return path.read_text().count('"event":"step"') if path.exists() else 0


def test_under_torchrun_it_joins_the_ranks(tmp_path, forked_torchrun):
    folder = tmp_path / "run"
    launcher = [forked_torchrun, "--nproc-per-node", "2", "--rdzv-backend", "c10d"]
    command = [*launcher, "--rdzv-endpoint", "localhost:0", "-m", "headway", "train", *SMALL, "--method", "dense"]
    found = subprocess.run(
        [*command, "--steps", "5", "--json", "--output", str(folder)],
        capture_output=True, text=True, timeout=90, check=False,
    )  # fmt: skip
    assert found.returncode == 0, found.stderr
    assert [row["num_steps"] for row in json.loads(found.stdout)] == [5]
    assert len(read_run(folder).steps) == 5


@pytest.mark.lab
def test_methods_compare_on_an_emulated_network(tmp_path, headway):
    """The same work on the same network, whose true link is in the events; plain DDP is what speed is compared with."""
    if possible.missing() is not None:
        pytest.skip(possible.missing())
    folder = tmp_path / "both"
    found = headway(
        *SMALL, "--compare", "ddp,allgather_topk", "--steps", 6, "--latency", "5ms", "--bandwidth", "80mbps",
        "--json", "--output", folder, timeout_s=110,
    )  # fmt: skip
    assert found.returncode == 0, found.stderr
    plain, topk = json.loads(found.stdout)
    assert (plain["name"], topk["name"]) == ("ddp", "allgather_topk")
    assert plain["is_baseline"]
    assert topk["speedup"] is not None
    assert topk["wire_bytes"] < plain["wire_bytes"] / 2  # the first two steps are dense
    runs = [read_run(folder / name) for name in ("ddp", "allgather_topk")]
    assert [run.phases[0]["bandwidth_bps"] for run in runs] == [80e6, 80e6]
    assert [run.phases[0]["latency_s"] for run in runs] == [0.005, 0.005]
    assert len({run.steps[0]["loss"] for run in runs}) == 1
    assert (folder / "report.html").stat().st_size > 100_000
    assert f"report: {folder / 'report.html'}" in found.stderr
    again = session.resume(folder, None, None, TrainScreen)  # nothing is left to do
    assert [run.time_s for run in again] == [run.time_s for run in runs]


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--method", "zip"], "there is no method 'zip': choose one of ddp, adaptive"),
        (["--compare", "ddp,zip"], "there is no method 'zip'"),
        (["--compare", "ddp,ddp"], "must be different methods with commas"),
        (["--workload", "fashion-mnist", "--data", "nowhere"], "there is no folder nowhere"),
        (["--workers", "100000"], "100000 workers are too many for this machine"),
        (["--resume", "nowhere"], "nowhere is not a run directory"),
        (["--scenario", "moon"], "moon is neither a file nor a preset"),
        (["--latency", "5"], "--latency: '5' is not a duration"),
        (["--compare", "ddp", "--method", "dense"], "--compare names the methods: leave out --method"),
        (["--stretch", "2"], "there is no network to emulate: leave out --stretch"),
        (["--compare", "ddp,gossip-dcd", "--workload", "text", "--data", "nowhere"], "the text nowhere cannot be read"),
        (["--scenario", "wan", "--loss", "1%"], "--loss cannot go with --scenario"),
        (
            ["--resume", "x", "--compare", "ddp"],
            "--resume takes everything but --steps from the folder: leave out --compare",
        ),
        (["--topology", "line", "--method", "gossip-dcd"], "there is no topology 'line'"),
        (["--method", "local", "--local-steps", "few"], "local_steps is 'few', but must be 'auto', or a number"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_2(args, said):
    found = CliRunner().invoke(app, ["train", *args])
    assert found.exit_code == 2
    assert said in found.stderr
    assert found.stderr.rstrip().splitlines()[-1].startswith("headway train: ")
    assert "Traceback" not in found.stderr


def test_a_port_in_use_is_reported_before_workers_start(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        found = CliRunner().invoke(app, ["train", "--port", port, "--output", str(tmp_path / "run")])
    assert found.exit_code == 2
    assert f"port {port} cannot be used" in found.stderr


def test_a_run_directory_of_another_version_is_rejected(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"version": 99}))
    found = CliRunner().invoke(app, ["train", "--resume", str(tmp_path)])
    assert found.exit_code == 2
    assert "is a run directory of version 99, but this headway reads version 1" in found.stderr


def test_a_folder_that_holds_a_run_is_not_overwritten(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"version": 1}))
    found = CliRunner().invoke(app, ["train", "--output", str(tmp_path)])
    assert found.exit_code == 2
    assert f"holds a run already: give another folder, or continue with --resume {tmp_path}" in found.stderr


def test_a_worker_that_fails_is_named(tmp_path, monkeypatch, forked_python):
    """Here because of a text file that disappears before workers read it."""
    text = tmp_path / "text.txt"
    text.write_text("some words, " * 1000)
    real = session.make_folder

    def make_folder(*args, **options):
        real(*args, **options)
        text.unlink()

    monkeypatch.setattr(session, "make_folder", make_folder)
    monkeypatch.setattr(launch, "sys", SimpleNamespace(executable=forked_python))
    output = str(tmp_path / "run")
    found = CliRunner().invoke(app, ["train", "--workload", "text", "--data", str(text), "--output", output])
    assert found.exit_code == 1
    assert "cannot be read: No such file or directory" in found.stderr
    assert "failed with exit code 1; fix the cause and continue with: headway train --resume" in found.stderr


def test_loopback_replaces_a_lab_that_is_impossible_on_request(tmp_path, monkeypatch):
    networks = []
    monkeypatch.setattr(possible, "missing", lambda: "The lab needs a moon.")
    monkeypatch.setattr(session, "_run", lambda request, *_: networks.append(request.network))
    monkeypatch.setattr("headway.cli.train_summary.show_runs", lambda *args, **options: None)
    options = ["train", *SMALL, "--scenario", "wan", "--steps", "2"]
    rejected = CliRunner().invoke(app, [*options, "--output", str(tmp_path / "one")])
    assert rejected.exit_code == 2
    assert "The lab needs a moon." in rejected.stderr
    found = CliRunner().invoke(app, [*options, "--or-loopback", "--output", str(tmp_path / "other")])
    assert found.exit_code == 0, found.stderr
    assert "no emulated network, but loopback: The lab needs a moon." in found.stderr
    assert [network.is_given for network in networks] == [False]


def test_a_port_is_checked_before_a_folder_is_made(tmp_path):
    found = CliRunner().invoke(app, ["train", "--port", "70000", "--output", str(tmp_path / "new")])
    assert found.exit_code == 2
    assert "port is 70000" in found.stderr
    assert not (tmp_path / "new").exists()


def test_options_for_starting_workers_are_rejected_under_a_launcher(monkeypatch):
    monkeypatch.setitem(os.environ, "RANK", "0")
    monkeypatch.setitem(os.environ, "WORLD_SIZE", "2")
    found = CliRunner().invoke(app, ["train", "--workers", "4"])
    assert found.exit_code == 2
    assert "ranks have been started already: leave out --workers" in found.stderr
