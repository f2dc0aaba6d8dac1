"""What is remembered of a machine, and when it is not believed."""

from __future__ import annotations

import os
import time

import pytest
import torch

from headway.exchange import ComputeSpeed, Plan, speed_cache
from headway.exchange.speed_cache import SpeedCache, worth_keeping

FORM = ("allgather_topk", "int8", 0)
SPEED = ComputeSpeed(call_s=0.001, entry_s=2e-9, sent_s=3e-8)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "headway"


def test_what_is_written_is_read_and_more_is_added():
    assert SpeedCache(4).read() == {}
    SpeedCache(4).write({FORM: SPEED})
    other = ("dense", "fp16", 0)
    SpeedCache(4).write({other: ComputeSpeed()})
    assert SpeedCache(4).read() == {FORM: SPEED, other: ComputeSpeed()}


def test_it_is_for_one_number_of_ranks_threads_and_one_code(monkeypatch):
    SpeedCache(4).write({FORM: SPEED})
    assert SpeedCache(8).read() == {}
    with monkeypatch.context() as patch:
        patch.setattr(speed_cache, "_newest_change", lambda: 0.0)
        assert SpeedCache(4).read() == {}
    with monkeypatch.context() as patch:
        patch.setattr(torch, "get_num_threads", lambda: 77)
        assert SpeedCache(4).read() == {}
    assert SpeedCache(4).read() == {FORM: SPEED}


def test_it_is_forgotten_after_a_day():
    cache = SpeedCache(4)
    cache.write({FORM: SPEED})
    an_hour_ago, yesterday = time.time() - 3600, time.time() - 90_000
    os.utime(cache.path, (an_hour_ago, an_hour_ago))
    assert cache.read() == {FORM: SPEED}
    os.utime(cache.path, (yesterday, yesterday))
    assert cache.read() == {}


@pytest.mark.parametrize("text", ["", "[", "{}", "[1]", '[{"exchange": "dense"}]', '[{"speed": {"call_s": 1}}]'])
def test_a_damaged_file_is_as_good_as_none(text):
    cache = SpeedCache(4)
    cache.path.parent.mkdir(parents=True)
    cache.path.write_text(text)
    assert cache.read() == {}
    cache.write({FORM: SPEED})
    assert cache.read() == {FORM: SPEED}


def test_so_is_a_folder_that_cannot_be_made(folder):
    folder.write_text("a file is in its place")
    SpeedCache(4).write({FORM: SPEED})
    assert SpeedCache(4).read() == {}


def test_nothing_but_the_file_is_left(folder):
    SpeedCache(4).write({FORM: SPEED})
    assert [path.name for path in folder.iterdir()] == [SpeedCache(4).path.name]


def test_only_exchanges_of_headway_are_kept(monkeypatch):
    plans = [Plan(exchange="dense"), Plan(exchange="star_topk")]
    assert worth_keeping(plans) == {plan.form for plan in plans}
    kind = type(speed_cache.exchange_of(plans[1]))
    monkeypatch.setattr(kind, "__module__", "somebody.elses")
    assert worth_keeping(plans) == {plans[0].form}
