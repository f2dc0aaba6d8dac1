"""Workers on loopback: torchrun's environment, failures, a port in use, and nothing left behind."""

from __future__ import annotations

import json
import signal
import socket
import sys
import time

import pytest

from headway.lab import run_on_loopback

SHOW = "import json, os; print(json.dumps(dict(os.environ)))"


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def test_workers_have_the_environment_of_one_node():
    lines: list[tuple[int, str]] = []
    outcome = run_on_loopback(3, python(SHOW), env={"MINE": "1"}, output=lambda rank, line: lines.append((rank, line)))
    assert outcome.exit_codes == (0, 0, 0)
    assert outcome.first_failed is None
    for rank, line in lines:
        found = json.loads(line)
        assert (found["RANK"], found["LOCAL_RANK"], found["GROUP_RANK"]) == (str(rank), str(rank), "0")
        assert (found["WORLD_SIZE"], found["LOCAL_WORLD_SIZE"]) == ("3", "3")
        assert (found["MASTER_ADDR"], found["MINE"]) == ("127.0.0.1", "1")
        assert found["OMP_NUM_THREADS"] == "1"  # all workers share the cores
    assert len({json.loads(line)["MASTER_PORT"] for _, line in lines}) == 1
    assert sorted(rank for rank, _ in lines) == [0, 1, 2]


def test_a_worker_that_fails_is_named_and_the_others_are_ended():
    code = "import os, sys, time; sys.exit(7) if os.environ['RANK'] == '1' else time.sleep(60)"
    started = time.monotonic()
    outcome = run_on_loopback(2, python(code), grace_s=0.2)
    assert (outcome.first_failed, outcome.exit_code) == (1, 7)
    assert time.monotonic() - started < 30


def test_workers_that_do_not_end_are_given_up():
    with pytest.raises(TimeoutError, match=r"had not ended after 0\.3 s"):
        run_on_loopback(1, python("import time; time.sleep(60)"), timeout_s=0.3)


def test_a_port_in_use_is_refused_before_anything_starts():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ValueError, match=f"port {port} cannot be used .*: give another one"):
            run_on_loopback(1, python("print('started')"), port=port)
    with pytest.raises(ValueError, match="port is 70000, but must be between 1 and 65535"):
        run_on_loopback(1, python("print('started')"), port=70000)


def test_an_interrupt_reaches_workers_which_may_end_in_order(tmp_path):
    """Ctrl-C, as far as workers see it; they get the time to finish."""
    code = f"""
import pathlib, signal, time
here = pathlib.Path({str(tmp_path)!r})
def finish(*_):
    time.sleep(0.2)
    (here / "finished").touch()
    raise SystemExit(0)
signal.signal(signal.SIGINT, finish)
(here / "ready").touch()
time.sleep(60)
"""
    has_asked = []

    def interrupt_when_ready() -> None:
        if (tmp_path / "ready").exists() and not has_asked:
            has_asked.append(True)
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        run_on_loopback(
            1, python(code), grace_s=0.0, interrupt_grace_s=20.0, on_progress=interrupt_when_ready, timeout_s=60
        )
    assert (tmp_path / "finished").exists()


def test_what_a_worker_has_started_ends_with_it(tmp_path):
    code = (
        "import os, subprocess, sys; "
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'], start_new_session=True); "
        f"open({str(tmp_path / 'child')!r}, 'w').write(str(child.pid)); os._exit(0)"
    )
    assert run_on_loopback(1, python(code)).exit_codes == (0,)
    pid = int((tmp_path / "child").read_text())
    deadline = time.monotonic() + 10
    while _runs(pid) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not _runs(pid)


def _runs(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False
