"""What is open when the process ends is closed, newest first, and in time."""

from __future__ import annotations

import os
import sys
import time

import pytest

from headway.collectives import ends


class Open:
    """Writes down what is done to it."""

    def __init__(self, name: str, log: list[str]) -> None:
        self._name, self._log = name, log

    def start_leaving(self, deadline, *, has_failed):
        self._log.append(f"{self._name} starts{' at once' * has_failed}")

        def finish():
            assert 0 < deadline - time.monotonic() < 5
            self._log.append(f"{self._name} ends")

        return finish


@pytest.fixture
def log(monkeypatch):
    monkeypatch.setattr(ends, "_open", {})
    monkeypatch.setattr(sys, "last_value", None, raising=False)
    written: list[str] = []
    for name in ("first", "closed", "second"):
        ends.register(each := Open(name, written))
        if name == "closed":
            ends.unregister(each)
    return written


def test_all_start_before_any_is_waited_for(log):
    ends._leave()
    assert log == ["second starts", "first starts", "second ends", "first ends"]


def test_after_an_exception_nobody_is_waited_for(log, monkeypatch):
    monkeypatch.setattr(sys, "last_value", ZeroDivisionError())
    ends._leave()
    assert log[:2] == ["second starts at once", "first starts at once"]


def test_a_forked_process_leaves_alone_what_its_parent_has_opened(log, monkeypatch):
    monkeypatch.setattr(os, "getpid", lambda: -1)
    ends._leave()
    assert log == []
