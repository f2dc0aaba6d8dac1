"""The command as a user runs it."""

import json
import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from headway.lab import possible

HEADWAY = [sys.executable, "-m", "headway"]
needs_lab = [pytest.mark.lab, pytest.mark.skipif(possible.missing() is not None, reason=str(possible.missing()))]


def _emulate(*args, timeout=60, **options):
    return subprocess.run(
        [*HEADWAY, "emulate", *map(str, args)], capture_output=True, text=True, timeout=timeout, **options
    )


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


@pytest.fixture
def start(tmp_path):
    """Start a lab whose workers print a process number each and then wait; return the launcher and the numbers."""
    launchers = []

    def run(num_hosts=2, code=WAIT):
        command = [*HEADWAY, "emulate", "-n", str(num_hosts), "--", sys.executable, "-c", code]
        environment = {**os.environ, "TMPDIR": str(tmp_path)}
        launchers.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment))
        pids = []
        while len(pids) < num_hosts:
            line = launchers[-1].stdout.readline()
            assert line, "the lab ended early"
            if " pid " in line:
                pids.append(int(line.split()[-1]))
        return launchers[-1], pids

    yield run
    for launcher in launchers:
        launcher.kill()
        launcher.wait()
        launcher.stdout.close()


class TestRun:
    pytestmark = needs_lab

    def test_output_has_the_rank_in_front(self):
        result = _emulate(
            "-n", 2, "--latency", "1ms", "--", sys.executable, "-c", "import os; print('I am', os.environ['RANK'])"
        )
        assert result.returncode == 0, result.stderr
        assert sorted(result.stdout.splitlines()) == ["[0] I am 0", "[1] I am 1"]

    def test_quiet_shows_rank_0_and_the_end_of_a_rank_that_failed(self):
        code = "import os, sys; r = int(os.environ['RANK']); print('line of', r); sys.exit(7 * r)"
        result = _emulate("-n", 2, "--quiet", "--", sys.executable, "-c", code)
        assert result.returncode == 7
        assert result.stdout.splitlines() == ["[0] line of 0"]
        assert "rank 1 failed with exit code 7" in result.stderr
        assert "[1] line of 1" in result.stderr

    def test_phases_are_announced(self, tmp_path):
        path = tmp_path / "two.toml"
        path.write_text("[[phases]]\nat='0s'\nlatency='1ms'\n[[phases]]\nat='1s'\nlatency='9ms'\nbandwidth='5mbps'\n")
        result = _emulate("-n", 2, "--scenario", path, "--", "sleep", "1.5")
        assert result.returncode == 0
        assert "two phase 2 of 2, 9 ms, 5 Mbps" in result.stderr

    def test_arguments_after_the_dashes_are_the_programs(self):
        result = _emulate("-n", 1, "--", "echo", "--help", "-n", "5")
        assert result.stdout == "[0] --help -n 5\n"

    def test_json_holds_what_a_script_would_read(self, tmp_path):
        path = tmp_path / "run.json"
        code = "import os, sys; sys.exit(3 * (os.environ['RANK'] == '1'))"
        assert _emulate("-n", 2, "--json", path, "--", sys.executable, "-c", code).returncode == 3
        content = json.loads(path.read_text())
        assert content["exit_codes"] == [0, 3]
        assert content["first_failed"] == 1
        assert len(content["bytes"]) == len(content["bytes"][0]) == 2
        assert content["relay"]["is_saturated"] is False

    def test_a_program_that_is_not_there(self):
        result = _emulate("-n", 2, "--", "no-such-program")
        assert result.returncode == 2
        assert "no-such-program could not be started: No such file" in result.stderr

    def test_a_program_that_may_not_run(self, tmp_path):
        path = tmp_path / "script.py"
        path.write_text("")
        result = _emulate("-n", 2, "--", path)
        assert result.returncode == 2
        assert "script.py could not be started: Permission denied" in result.stderr

    def test_output_reaches_a_file_though_there_is_a_terminal(self, tmp_path):
        """The live line is on the terminal; what workers print belongs to standard output."""
        path = tmp_path / "out.txt"
        ours, terminal = pty.openpty()
        with path.open("w") as file:
            command = [*HEADWAY, "emulate", "-n", "2", "--", sys.executable, "-c", "print('x' * 300)"]
            subprocess.run(command, stdout=file, stderr=terminal, timeout=60, check=True)
        os.close(terminal)
        os.close(ours)
        assert sorted(path.read_text().splitlines()) == [f"[{rank}] {'x' * 300}" for rank in (0, 1)]

    def test_a_reader_that_leaves_early_ends_the_run(self):
        code = "for i in range(100000): print(i)"
        command = f"{' '.join(HEADWAY)} emulate -n 2 -- {sys.executable} -c '{code}' | head -n 2"
        result = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60)
        assert len(result.stdout.splitlines()) == 2
        assert "Traceback" not in result.stderr

    def test_what_workers_start_is_ended_with_the_run(self):
        code = (
            "import subprocess;"
            "child = subprocess.Popen(['sleep', '120'], start_new_session=True); print('pid', child.pid)"
        )
        result = _emulate("-n", 2, "--", sys.executable, "-c", code)
        assert result.returncode == 0
        pids = [int(line.split()[-1]) for line in result.stdout.splitlines()]
        assert len(pids) == 2
        assert _wait_for(lambda: not any(_is_running(pid) for pid in pids))

    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
    def test_ctrl_c_ends_everything(self, number, start):
        launcher, pids = start()
        for _ in range(3):
            launcher.send_signal(number)
        assert launcher.wait(30) == 130
        assert not any(_is_running(pid) for pid in pids)

    def test_workers_die_with_a_launcher_that_is_killed(self, start):
        launcher, pids = start()
        launcher.kill()
        launcher.wait(10)
        assert _wait_for(lambda: not any(_is_running(pid) for pid in pids))

    def test_clean_ends_what_a_killed_lab_left_and_spares_others(self, start, tmp_path):
        bystander = tmp_path / "headway-lab-results"
        bystander.mkdir()
        code = (
            "import subprocess, time;"
            "child = subprocess.Popen(['sleep', '120'], start_new_session=True);"
            "print('pid', child.pid, flush=True); time.sleep(120)"
        )
        launcher, (orphan,) = start(1, code)
        _, others = start()
        launcher.kill()
        launcher.wait(10)
        assert _is_running(orphan)
        result = _emulate("--clean", env={**os.environ, "TMPDIR": str(tmp_path)})
        assert result.returncode == 0
        assert "ended 1 processes, removed 1 folders" in result.stdout
        assert _wait_for(lambda: not _is_running(orphan))
        assert all(_is_running(pid) for pid in others)
        assert bystander.exists()


class TestBadInput:
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
        ],
    )
    def test_one_line_and_exit_code_2(self, args, message):
        result = _emulate(*args)
        assert result.returncode == 2
        assert message in result.stderr
        assert len(result.stderr.strip().splitlines()) == 1

    def test_a_wrong_file_is_named_with_key_and_value(self, tmp_path):
        path = tmp_path / "net.toml"
        path.write_text("[link]\nlatencey = '5ms'\n")
        result = _emulate("--scenario", path, "--", "true")
        assert result.returncode == 2
        assert f"{path}: link.latencey: unknown key (its value is '5ms')" in result.stderr


def test_list_shows_every_preset_with_a_picture():
    result = _emulate("--list", env={**os.environ, "COLUMNS": "120"})
    assert result.returncode == 0
    for name in ("lan", "wan", "c1", "c2", "flaky", "two_regions", "home_lines"):
        assert name in result.stdout
    assert "▁" in result.stdout
    assert "█" in result.stdout


def test_help_has_examples():
    result = _emulate("--help", env={**os.environ, "COLUMNS": "120"})
    assert result.returncode == 0
    assert "headway emulate -n 8 --scenario c2 --bandwidth-scale 0.04 -- python train.py" in result.stdout
