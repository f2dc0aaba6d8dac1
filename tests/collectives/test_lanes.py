"""Lanes alone, on a wire that only writes down what it is asked to do."""

from __future__ import annotations

import gc
import weakref

import torch

from headway.collectives import Collective, build
from headway.collectives.lanes import Lane, memory_numel, tag
from headway.collectives.program import lower
from tests.collectives.wires import Notebook


def lane_of(wire: Notebook, algorithm: str = "recursive_doubling", rank: int = 0, numel: int = 8) -> Lane:
    schedule = build(Collective.ALL_REDUCE, algorithm, 4)
    program, bounds = lower(schedule, rank), schedule.bounds(numel)
    return Lane(program, bounds, wire, 5, torch.empty(memory_numel(program, bounds)))


def test_everything_is_received_before_anything_is_sent():
    wire = Notebook()
    lane_of(wire).run(lambda: wire.log.append("meanwhile"))
    assert wire.log == [
        "receive from 1",
        "receive from 2",
        "send to 1",
        "meanwhile",
        "wait for 1",  # the send: its chunks are about to change
        "wait for 1",
        "send to 2",
        "wait for 2",
        "wait for 2",
    ]


def test_receives_posted_ahead_are_not_posted_again():
    wire = Notebook()
    lane = lane_of(wire)
    lane.post()
    lane.post()
    assert lane.is_posted
    assert wire.log == ["receive from 1", "receive from 2"]
    lane.run(lambda: None)
    assert not lane.is_posted
    assert wire.log[2] == "send to 1"
    lane.post()
    assert wire.log[-2:] == ["receive from 1", "receive from 2"]


def test_a_lane_that_is_drained_sends_and_takes_whatever_was_expected():
    wire = Notebook()
    lane = lane_of(wire)
    lane.post()
    lane.drain()
    lane.settle()
    assert sorted(wire.log) == sorted(f"{what} {peer}" for peer in (1, 2) for what in (
        "receive from", "send to", "wait for", "wait for"
    ))  # fmt: skip


def test_memory_is_free_as_soon_as_a_lane_is_dropped():
    """Not when the garbage collector comes by: that may be many large buffers later."""
    gc.disable()
    try:
        lane = lane_of(Notebook())
        lane.run(lambda: None)
        dropped, buffer = weakref.ref(lane), weakref.ref(lane.buffer)
        del lane
        assert dropped() is None
        assert buffer() is None
    finally:
        gc.enable()


def test_empty_chunks_are_not_moved():
    wire = Notebook()
    lane_of(wire, "ring", numel=1).run(lambda: None)
    assert len([line for line in wire.log if line.startswith("send")]) <= 2
    wire.log.clear()
    lane = lane_of(wire, "ring", numel=0)
    lane.run(lambda: None)
    lane.drain()
    lane.settle()
    assert wire.log == []


def test_tags_tell_lanes_and_places_apart_and_places_wrap_round():
    tags = {tag(lane, place) for lane in range(1, 50) for place in range(2048)}
    assert len(tags) == 49 * 2048
    assert max(tags) < 1 << 31
    assert tag(3, 2048 + 7) == tag(3, 7)  # messages between two ranks with one tag keep their order
