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
            assert deadline - time.monotonic() <= ends.LEAVING_S
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


def test_while_an_exception_is_on_its_way_other_ranks_are_waited_for_briefly():
    before = time.monotonic()
    calm = ends.closing_deadline()
    try:
        raise ZeroDivisionError
    except ZeroDivisionError:
        hurried = ends.closing_deadline()
    after = time.monotonic()
    assert before + ends.CLOSING_S <= calm <= after + ends.CLOSING_S
    assert before + ends.FAILING_S <= hurried <= after + ends.FAILING_S


def test_all_that_a_process_may_wait_for_at_its_end_is_short():
    """Launchers kill what does not end, and other ranks learn of a failure only then."""
    assert ends.LEAVING_S + ends.CUTTING_S <= ends.CLOSING_S <= 5
    assert ends.FAILING_S < ends.CLOSING_S


def test_a_forked_process_leaves_alone_what_its_parent_has_opened(log, monkeypatch):
    monkeypatch.setattr(os, "getpid", lambda: -1)
    ends._leave()
    assert log == []
