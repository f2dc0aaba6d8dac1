"""Lanes alone, on a wire that only writes down what it is asked to do."""

from __future__ import annotations

import pytest
import torch

from headway.collectives import Collective, build
from headway.collectives.lanes import SERVICE_LANE, Lane, Lanes, lane_id, tag
from headway.collectives.program import lower


class Notebook:
    """Stands in for the wire; everything is over at once."""

    def __init__(self) -> None:
        self.log: list[str] = []

    @staticmethod
    def as_bytes(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.view(torch.uint8)

    def send(self, payload, peer, tag):
        self.log.append(f"send to {peer}")
        return _Done(peer)

    def receive(self, target, peer, tag):
        self.log.append(f"receive from {peer}")
        return _Done(peer)

    def wait(self, pending, deadline):
        self.log.append(f"wait for {pending.peer}")


class _Done:
    def __init__(self, peer: int) -> None:
        self.peer = peer


def lane_of(wire: Notebook, algorithm: str = "recursive_doubling", rank: int = 0, numel: int = 8) -> Lane:
    schedule = build(Collective.ALL_REDUCE, algorithm, 4)
    return Lane(lower(schedule, rank), schedule.bounds(numel), torch.float32, wire, 5)


def test_everything_is_received_before_anything_is_sent():
    wire = Notebook()
    lane_of(wire).run(1.0, lambda: wire.log.append("meanwhile"))
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
    assert wire.log == ["receive from 1", "receive from 2"]
    lane.run(1.0, lambda: None)
    assert wire.log[2] == "send to 1"
    lane.post()
    assert wire.log[-2:] == ["receive from 1", "receive from 2"]


def test_a_forgotten_lane_posts_nothing():
    wire = Notebook()
    lane = lane_of(wire)
    lane.is_forgotten = True
    lane.post()
    assert wire.log == []


def test_empty_chunks_are_not_moved():
    wire = Notebook()
    lane_of(wire, "ring", numel=1).run(1.0, lambda: None)
    assert len([line for line in wire.log if line.startswith("send")]) <= 2
    wire.log.clear()
    lane_of(wire, "ring", numel=0).run(1.0, lambda: None)
    assert wire.log == []


def test_tags_tell_lanes_and_places_apart_and_places_wrap_round():
    tags = {tag(lane, place) for lane in range(1, 50) for place in range(2048)}
    assert len(tags) == 49 * 2048
    assert max(tags) < 1 << 31
    assert tag(3, 2048 + 7) == tag(3, 7)  # messages between two ranks with one tag keep their order


def test_ids_follow_from_what_the_lane_is_for_and_are_never_given_twice():
    assert lane_id(1234, set()) == lane_id(1234, set())
    assert lane_id(SERVICE_LANE, set()) != SERVICE_LANE
    taken: set[int] = set()
    for _ in range(100):
        found = lane_id(77, taken)
        assert found not in taken
        taken.add(found)


@pytest.mark.parametrize("max_bytes", [0, 2000, 10_000])
def test_all_ranks_make_and_forget_the_same_lanes(max_bytes):
    """A star's server needs most: what each rank holds must not decide."""
    ids = []
    for rank in range(4):
        lanes = Lanes(Notebook(), rank, max_bytes)
        seen = []
        for call in range(40):
            schedule = build(Collective.ALL_REDUCE, ("star", "tree", "ring")[call % 3], 4)
            seen.append(lanes.next(schedule, 100 * (1 + call % 4), torch.float32).id)
        ids.append((seen, lanes.num_bytes))
    assert ids[0] == ids[1] == ids[2] == ids[3]


def test_two_lanes_of_a_kind_take_turns():
    lanes = Lanes(Notebook(), 0, 1 << 20)
    schedule = build(Collective.ALL_REDUCE, "ring", 4)
    ids = [lanes.next(schedule, 8, torch.float32).id for _ in range(6)]
    assert ids[0] != ids[1]
    assert ids == ids[:2] * 3
