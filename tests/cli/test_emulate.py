"""``headway emulate`` as a user runs it."""

import contextlib
import json
import os
import pty
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from headway import cli
from headway.cli import app
from headway.cli import emulate as emulate_module
from headway.lab import possible
from tests import forked

HEADWAY = [sys.executable, "-m", "headway"]
COMMAND_LINE = Path(cli.__file__).parent.parent / "__main__.py"
needs_lab = [pytest.mark.lab, pytest.mark.skipif(possible.missing() is not None, reason=str(possible.missing()))]


def _emulate(*args, timeout=60, **options):
    """Run it forked, without the seconds that importing takes; some tests start it as users do."""
    command = forked.command(COMMAND_LINE, "emulate", *map(str, args))
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout, **options)


def _is_running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except OSError:
        return False


def _wait_for(condition, seconds=15.0):
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.05)
    return condition()


WAIT = "import os, time; print('pid', os.getpid(), flush=True); time.sleep(120)"
WITH_CHILD = (
    "import os, subprocess, sys, time;"
    "child = subprocess.Popen(['sleep', '120'], start_new_session=True);"
    "print('pid', child.pid, flush=True);"
)


@pytest.fixture
def labs_folder():
    """Where labs put their files; its path is short, as those of sockets must be."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


@pytest.fixture
def start(labs_folder):
    """Start labs whose workers print a process id each and then wait; return each launcher with the ids."""
    launchers = []

    def run(*labs):
        started = []
        for num_hosts, code in labs:
            command = [*HEADWAY, "emulate", "-n", str(num_hosts), "--", sys.executable, "-c", code]
            environment = {**os.environ, "TMPDIR": str(labs_folder)}
            started.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment))
            launchers.append(started[-1])
        return [(launcher, _pids(launcher, num_hosts)) for launcher, (num_hosts, _) in zip(started, labs, strict=True)]

    yield run
    for launcher in launchers:
        launcher.kill()
        launcher.wait()
        launcher.stdout.close()


def _pids(launcher, number):
    found = []
    while len(found) < number:
        line = launcher.stdout.readline()
        assert line, "the lab ended early"
        if " pid " in line:
            found.append(int(line.split()[-1]))
    return found


class TestRun:
    pytestmark = needs_lab

    def test_output_has_the_rank_in_front_and_what_workers_start_ends_with_them(self):
        """Arguments after the dashes are the program's."""
        code = WITH_CHILD + "print('I am', os.environ['RANK'], *sys.argv[1:])"
        result = _emulate("-n", 2, "--latency", "1ms", "--", sys.executable, "-c", code, "--help", "-n", "5")
        assert result.returncode == 0, result.stderr
        lines = sorted(line for line in result.stdout.splitlines() if " pid " not in line)
        assert lines == ["[0] I am 0 --help -n 5", "[1] I am 1 --help -n 5"]
        pids = [int(line.split()[-1]) for line in result.stdout.splitlines() if " pid " in line]
        assert len(pids) == 2
        assert _wait_for(lambda: not any(_is_running(pid) for pid in pids))

    def test_quiet_shows_rank_0_and_the_end_of_a_rank_that_failed(self, tmp_path):
        """The JSON has what a script would read."""
        path = tmp_path / "run.json"
        code = "import os, sys; r = int(os.environ['RANK']); print('line of', r); sys.exit(7 * r)"
        result = _emulate("-n", 2, "--quiet", "--json", path, "--", sys.executable, "-c", code)
        assert result.returncode == 7
        assert result.stdout.splitlines() == ["[0] line of 0"]
        assert "rank 1 failed with exit code 7" in result.stderr
        assert "[1] line of 1" in result.stderr
        content = json.loads(path.read_text())
        assert content["exit_codes"] == [0, 7]
        assert content["first_failed"] == 1
        assert len(content["bytes"]) == len(content["bytes"][0]) == 2
        assert {"cpu_share", "is_saturated"} <= set(content["relay"])

    def test_phases_are_announced_and_output_reaches_a_file_though_there_is_a_terminal(self, tmp_path):
        """The live line and the phases are on the terminal; what workers print belongs to standard output."""
        scenario, output = tmp_path / "two.toml", tmp_path / "out.txt"
        scenario.write_text(
            "[[phases]]\nat='0s'\nlatency='1ms'\n[[phases]]\nat='200ms'\nlatency='9ms'\nbandwidth='5mbps'\n"
        )
        is_shown = tmp_path / "shown"
        code = (
            "import os, time; print('x' * 300, flush=True); end = time.monotonic() + 60\n"
            f"while not os.path.exists({str(is_shown)!r}) and time.monotonic() < end: time.sleep(0.02)"
        )
        arguments = ("emulate", "-n", "2", "--scenario", str(scenario), "--", sys.executable, "-c", code)
        command = forked.command(COMMAND_LINE, *arguments)
        ours, terminal = pty.openpty()
        with output.open("w") as file:
            process = subprocess.Popen(command, stdout=file, stderr=terminal)
        os.close(terminal)
        shown = b""
        with contextlib.suppress(OSError):  # the end of a terminal
            while part := os.read(ours, 65536):
                shown += part
                if b"two phase 2 of 2, 9 ms, 5 Mbps" in shown:
                    is_shown.touch()
        os.close(ours)
        assert process.wait(60) == 0
        assert is_shown.exists()
        assert sorted(output.read_text().splitlines()) == [f"[{rank}] {'x' * 300}" for rank in (0, 1)]

    def test_a_reader_that_leaves_early_ends_the_run(self):
        code = "for i in range(100000): print(i)"
        command = (
            f"{' '.join(HEADWAY)} emulate -n 2 -- {sys.executable} -c '{code}' | head -n 2; exit ${{PIPESTATUS[0]}}"
        )
        result = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60)
        assert len(result.stdout.splitlines()) == 2
        assert "Traceback" not in result.stderr
        assert result.returncode == 141

    def test_workers_end_with_a_launcher_that_is_stopped_or_killed(self, start):
        labs = start(*[(2, WAIT)] * 3)
        for number, (launcher, _) in zip((signal.SIGINT, signal.SIGTERM, signal.SIGKILL), labs, strict=True):
            for _ in range(3):
                launcher.send_signal(number)
        assert [launcher.wait(30) for launcher, _ in labs] == [130, 130, -signal.SIGKILL]
        assert not any(_is_running(pid) for _, pids in labs[:2] for pid in pids)
        assert _wait_for(lambda: not any(_is_running(pid) for pid in labs[2][1]))

    def test_clean_ends_what_a_killed_lab_left_and_spares_others(self, start, labs_folder):
        bystander = labs_folder / "headway-lab-results"
        bystander.mkdir()
        (launcher, (orphan,)), (_, others) = start((1, WITH_CHILD + "time.sleep(120)"), (2, WAIT))
        launcher.kill()
        launcher.wait(10)
        assert _is_running(orphan)
        result = _emulate("--clean", env={**os.environ, "TMPDIR": str(labs_folder)})
        assert result.returncode == 0
        assert "ended 1 processes, removed 1 folders" in result.stdout
        assert _wait_for(lambda: not _is_running(orphan))
        assert all(_is_running(pid) for pid in others)
        assert bystander.exists()


class TestBadInput:
    @pytest.fixture(autouse=True)
    def in_this_process(self, monkeypatch):
        monkeypatch.setattr(emulate_module, "enter_user_namespace_if_needed", lambda: None)
        monkeypatch.setattr(emulate_module, "raise_on_signals", lambda: None)

    @pytest.mark.parametrize(
        ("args", "message"),
        [
            (["--latency", "10 parsecs", "--", "true"], "--latency: '10 parsecs' is not a duration"),
            (["--bandwidth", "-5mbps", "--", "true"], "--bandwidth: '-5mbps' is not a bandwidth"),
            (["--scenario", "nowhere", "--", "true"], "nowhere is neither a file nor a preset"),
            (["--scenario", "c1", "--latency", "1ms", "--", "true"], "--latency cannot go with --scenario"),
            (["--scenario", "c1", "--bandwidth-scale", "0", "--", "true"], "factor of bandwidth is 0"),
            (["-n", "0", "--", "true"], "number of hosts is 0"),
            (["-n", "1", "--scenario", "flaky", "--", "true"], "flaky: events[0].ranks: rank 1 is out of range"),
            ([], "nothing to run: give a program after --"),
            pytest.param(
                ["--", "no-such-program"], "no-such-program could not be started: No such file", marks=needs_lab
            ),
            pytest.param(["--", __file__], "test_emulate.py could not be started: Permission denied", marks=needs_lab),
        ],
    )
    def test_one_line_and_exit_code_2(self, args, message):
        result = CliRunner().invoke(app, ["emulate", *args])
        assert result.exit_code == 2
        assert message in result.stderr
        assert len(result.stderr.strip().splitlines()) == 1

    def test_a_wrong_file_is_named_with_key_and_value(self, tmp_path):
        path = tmp_path / "net.toml"
        path.write_text("[link]\nlatencey = '5ms'\n")
        result = CliRunner().invoke(app, ["emulate", "--scenario", str(path), "--", "true"])
        assert result.exit_code == 2
        assert f"{path}: link.latencey: unknown key (its value is '5ms')" in result.stderr


def test_list_shows_every_preset_with_a_picture():
    result = CliRunner(env={"COLUMNS": "120"}).invoke(app, ["emulate", "--list"])
    assert result.exit_code == 0
    for name in ("lan", "wan", "c1", "c2", "flaky", "two_regions", "home_lines"):
        assert name in result.stdout
    assert "▁" in result.stdout
    assert "█" in result.stdout


def test_help_has_examples():
    result = CliRunner(env={"COLUMNS": "120"}).invoke(app, ["emulate", "--help"])
    assert result.exit_code == 0
    assert "headway emulate -n 8 --scenario c2 --bandwidth-scale 0.04 -- python train.py" in result.stdout
