"""The engine alone: order, errors, and never a task that is waited for in vain."""

from __future__ import annotations

import threading
import time

import pytest

from headway.exchange import Engine


@pytest.fixture
def engine():
    engine = Engine()
    yield engine
    engine.close()


def nothing() -> None:
    pass


def test_tasks_run_in_order_on_one_other_thread(engine):
    ran = []
    for number in range(100):
        engine.submit(lambda number=number: ran.append((number, threading.current_thread())), nothing)
    engine.drain()
    assert [number for number, _ in ran] == list(range(100))
    assert {thread.name for _, thread in ran} == {"headway-engine"}


def test_after_an_error_tasks_are_given_up_and_the_error_is_raised_for_ever(engine):
    ran = []

    def fail() -> None:
        raise KeyError("first")

    engine.submit(lambda: ran.append("before"), nothing)
    engine.submit(fail, lambda: ran.append("given up"))
    engine.submit(lambda: ran.append("after"), lambda: ran.append("given up too"))
    for _ in range(2):
        with pytest.raises(KeyError, match="first"):
            engine.drain()
        with pytest.raises(KeyError, match="first"):
            engine.raise_error()
    assert ran == ["before", "given up", "given up too"]


def test_an_error_carries_the_place_where_it_happened(engine):
    engine.submit(lambda: 1 // 0, nothing)
    with pytest.raises(ZeroDivisionError) as raised:
        engine.drain()
    assert any("engine.py" in str(entry.path) for entry in raised.traceback)


def test_close_runs_what_was_submitted_and_may_be_called_twice():
    engine, ran = Engine(), []
    engine.submit(lambda: (time.sleep(0.05), ran.append(1)), nothing)
    engine.close()
    engine.close()
    assert ran == [1]


def test_a_closed_engine_takes_no_tasks():
    engine = Engine()
    engine.close()
    with pytest.raises(ValueError, match="wrap the model again"):
        engine.submit(nothing, nothing)


def test_giving_up_may_fail_too(engine):
    engine.submit(lambda: 1 // 0, lambda: 1 // 0)
    engine.submit(nothing, lambda: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        engine.drain()
