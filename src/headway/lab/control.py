"""The channel from a script to the lab it runs in: rank 0 announces its steps, which phases may depend on.

    control = headway.lab.Control()
    for step in range(num_steps):
        control.step(step)
        ...

Outside of a lab, and on the other ranks, the calls do nothing.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable
from pathlib import Path

from headway.errors import LabError

SOCKET_VARIABLE = "HEADWAY_LAB_SOCKET"

_LONGEST_MESSAGE_BYTES = 64


class Control:
    """Announces steps to the lab."""

    def __init__(self) -> None:
        path = os.environ.get(SOCKET_VARIABLE)
        self._path = path if path and os.environ.get("RANK", "0") == "0" else None
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) if self._path else None
        if self._socket is not None:
            self._socket.setblocking(False)  # training must never wait for the lab

    @property
    def is_connected(self) -> bool:
        """Whether this is rank 0 of a lab."""
        return self._socket is not None

    def step(self, number: int) -> None:
        """Announce that a step begins."""
        if self._socket is None or self._path is None:
            return
        try:
            self._socket.sendto(f"step {int(number)}".encode(), self._path)
        except BlockingIOError:  # the lab is behind; a later step supersedes this one
            return
        except OSError:  # the lab has ended; the script has not noticed yet
            self.close()

    def close(self) -> None:
        """Close the channel; later calls do nothing."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None


class ControlServer:
    """The lab's end of the channel: a socket in the file system, which every network namespace can reach."""

    def __init__(self, path: Path, on_step: Callable[[int], None]) -> None:
        self.path = path
        self._on_step = on_step
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            self._socket.bind(str(path))
        except OSError as error:
            self._socket.close()
            raise LabError(f"no socket at {path}: {error}; set TMPDIR to a folder with a short path") from None
        self._thread = threading.Thread(target=self._serve, name="headway-control", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Close the channel."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as farewell:
            farewell.sendto(b"close", str(self.path))
        self._thread.join()
        self._socket.close()
        self.path.unlink(missing_ok=True)

    def _serve(self) -> None:
        while True:
            word, _, number = self._socket.recv(_LONGEST_MESSAGE_BYTES).decode("ascii", "replace").partition(" ")
            if word == "close":
                return
            if word == "step" and number.isdecimal():
                self._on_step(int(number))
