import threading

from headway.lab import Control
from headway.lab.control import SOCKET_VARIABLE, ControlServer


def test_steps_reach_the_lab(tmp_path, monkeypatch):
    steps, got_both = [], threading.Event()

    def on_step(step):
        steps.append(step)
        if len(steps) == 2:
            got_both.set()

    server = ControlServer(tmp_path / "control", on_step)
    monkeypatch.setenv(SOCKET_VARIABLE, str(server.path))
    monkeypatch.setenv("RANK", "0")
    control = Control()
    assert control.is_connected
    control.step(3)
    control.step(4)
    assert got_both.wait(10)
    server.close()
    assert steps == [3, 4]
    control.step(5)  # the lab is gone: nothing happens
    control.close()


def test_nothing_happens_on_other_ranks_and_outside_of_a_lab(tmp_path, monkeypatch):
    monkeypatch.delenv(SOCKET_VARIABLE, raising=False)
    control = Control()
    control.step(1)
    assert not control.is_connected
    monkeypatch.setenv(SOCKET_VARIABLE, str(tmp_path / "control"))
    monkeypatch.setenv("RANK", "1")
    assert not Control().is_connected


def test_nonsense_on_the_line_is_passed_over(tmp_path):
    import socket

    steps = []
    server = ControlServer(tmp_path / "control", steps.append)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        for message in (b"step x", b"\xff\xfe", b"jump 3", b"step -1", b"step 8"):
            sender.sendto(message, str(server.path))
    server.close()
    assert steps == [8]
