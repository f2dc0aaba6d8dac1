"""Lanes: one rank's program with buffers and tags of its own, and its receives posted ahead.

torch's Gloo sends only after the receiver has said that it is ready; a receive that is posted late costs another α. So
the receives of a lane are posted during the call before, long before any rank sends. That is safe because buffers
belong to the lane: what arrives early lands there, and callers get copies. Each kind of call has two lanes, which take
turns, so that the receives of one can be posted during the call of the other.
"""

from __future__ import annotations

import zlib
from collections import OrderedDict
from collections.abc import Callable
from itertools import takewhile

import torch
from torch import Tensor

from headway.collectives.program import Program, Send, Settle, Step, Take, lower
from headway.collectives.schedule import PlacedTransfer, Schedule
from headway.collectives.wire import Pending, Wire

_PLACE_BITS = 11
_NUM_IDS = 1 << (31 - _PLACE_BITS)
"""A tag has 31 bits: the lane's id and the transfer's place in the schedule. Messages between the same two ranks with
the same tag stay in order, so places may wrap around."""

SERVICE_LANE = 0
"""The id whose tags carry notices (see `watch`) and control rounds, never a lane."""
_LANES_PER_KIND = 2

Kind = tuple[Schedule, int, torch.dtype]
"""Calls of a kind have the same schedule, number of entries and type."""


def lane_id(fingerprint: int, taken: set[int]) -> int:
    """Return an id derived from the kind of call, past those taken: ranks that disagree hardly ever share a tag.

    >>> lane_id(_NUM_IDS + 7, {7, 8})
    9
    """
    for offset in range(_NUM_IDS):
        candidate = (fingerprint + offset) % _NUM_IDS
        if candidate != SERVICE_LANE and candidate not in taken:
            return candidate
    raise RuntimeError(f"all {_NUM_IDS} lanes of this executor have been used: make a new one")


def tag(lane: int, place: int) -> int:
    """Return the tag of a transfer."""
    return lane << _PLACE_BITS | place & ((1 << _PLACE_BITS) - 1)


class Lane:
    """Buffers, tags and posted receives for one program and one size.

    Args:
        program: The steps of this rank.
        bounds: Where each chunk begins, in entries.
        dtype: The type of an entry.
        wire: Carries the transfers.
        id: The upper bits of the tags, from `lane_id`.
    """

    def __init__(self, program: Program, bounds: tuple[int, ...], dtype: torch.dtype, wire: Wire, id: int) -> None:
        self.id = id
        self.buffer = torch.empty(bounds[-1], dtype=dtype)
        self._program = program
        self._bounds = bounds
        self._wire = wire
        self._landings = {
            placed.place: torch.empty_like(self._chunks(placed))
            for placed in program.receives
            if placed.transfer.reduce
        }
        steps = [step for step in program.steps if self._chunks(_first(step)).numel()]
        self._num_first_sends = len(list(takewhile(lambda step: isinstance(step, Send), steps)))
        self._steps = [self._compile(step) for step in steps]
        self._receives: dict[int, Pending] = {}
        self._sends: dict[int, Pending] = {}
        self._deadline = 0.0
        self._waits_for: int | None = None
        self.is_forgotten = False
        """Whether it will not be used again."""

    def run(self, deadline: float, meanwhile: Callable[[], None]) -> None:
        """Execute every step; the buffer then holds the result.

        Args:
            deadline: When to give up (`time.monotonic`).
            meanwhile: Called once all that can be sent at first has been sent, before the first wait.
        """
        self._deadline = deadline
        self.post()
        for step in self._steps[: self._num_first_sends]:
            step()
        meanwhile()
        for step in self._steps[self._num_first_sends :]:
            step()

    def post(self) -> None:
        """Post those receives of the next call that are not posted yet: the buffer may change from now on."""
        for placed in () if self.is_forgotten else self._program.receives:
            target = self._landings.get(placed.place, self._chunks(placed))
            if target.numel() and placed.place not in self._receives:
                self._receives[placed.place] = self._wire.receive(
                    target, placed.transfer.src, tag(self.id, placed.place)
                )

    def waited_for(self) -> frozenset[int]:
        """Return the rank that this one waits for at the moment."""
        return frozenset() if self._waits_for is None else frozenset([self._waits_for])

    def _chunks(self, placed: PlacedTransfer) -> Tensor:
        return self.buffer[self._bounds[placed.transfer.start] : self._bounds[placed.transfer.stop]]

    def _compile(self, step: Step) -> Callable[[], None]:
        """Bind a step to its tensors, once for all calls."""
        first = _first(step)
        chunks = self._chunks(first)
        if isinstance(step, Send):
            return self._sender(first, chunks)
        if isinstance(step, Settle):
            return lambda: self._wait(self._sends, first.place)
        if step.transfer.reduce:
            return self._adder(step, chunks)
        return lambda: self._wait(self._receives, first.place)

    def _sender(self, placed: PlacedTransfer, chunks: Tensor) -> Callable[[], None]:
        peer, number, payload = placed.transfer.dst, tag(self.id, placed.place), self._wire.as_bytes(chunks)

        def send() -> None:
            self._sends[placed.place] = self._wire.send(payload, peer, number)

        return send

    def _adder(self, take: Take, chunks: Tensor) -> Callable[[], None]:
        places = [placed.place for placed in take.came]
        landings = [self._landings[place] for place in places]
        num_below = sum(placed.transfer.src < self._program.rank for placed in take.came)
        below, above = landings[:num_below], landings[num_below:]

        def add() -> None:
            for place in places:
                self._wait(self._receives, place)
            add_in_order(below, chunks, above)

        return add

    def _wait(self, pending: dict[int, Pending], place: int) -> None:
        self._waits_for = pending[place].peer
        self._wire.wait(pending[place], self._deadline)
        self._waits_for = None
        del pending[place]


def add_in_order(below: list[Tensor], own: Tensor, above: list[Tensor]) -> None:
    """Add from left to right, into ``own``; the tensors below may be overwritten.

    >>> own = torch.tensor([2.0])
    >>> add_in_order([torch.tensor([1.0])], own, [torch.tensor([4.0])])
    >>> own
    tensor([7.])
    """
    if below:
        for part in below[1:]:
            below[0].add_(part)
        torch.add(below[0], own, out=own)
    for part in above:
        own.add_(part)


def _first(step: Step) -> PlacedTransfer:
    return step.came[0] if isinstance(step, Take) else step.placed


class Lanes:
    """Makes lanes, and forgets the least recently used ones when they hold too much memory.

    All ranks make the same calls in the same order, and count what a lane holds at the busiest rank, so they make and
    forget the same lanes: no rank sends on a lane that its peer has forgotten, and an id is never used again.

    Args:
        wire: Carries the transfers.
        rank: This rank.
        max_bytes: How much memory lanes may hold; the lane in use is kept in any case.
    """

    def __init__(self, wire: Wire, rank: int, max_bytes: int) -> None:
        self._wire = wire
        self._rank = rank
        self._max_bytes = max_bytes
        self._lanes: OrderedDict[tuple[Kind, int], Lane] = OrderedDict()
        self._turn: dict[Kind, int] = {}
        self._num_made: dict[tuple[Kind, int], int] = {}
        self._taken: set[int] = set()
        self.num_bytes = 0
        """How much memory the lanes hold at the busiest rank."""

    def next(self, schedule: Schedule, numel: int, dtype: torch.dtype) -> Lane:
        """Return the lane for the next call of this kind."""
        kind = (schedule, numel, dtype)
        turn = self._turn[kind] = (self._turn.get(kind, -1) + 1) % _LANES_PER_KIND
        key = (kind, turn)
        if key not in self._lanes:
            self._lanes[key] = self._make(kind, turn)
            self.num_bytes += _bytes_of(kind)
        self._lanes.move_to_end(key)
        self._forget()
        return self._lanes[key]

    def _make(self, kind: Kind, turn: int) -> Lane:
        schedule, numel, dtype = kind
        generation = self._num_made[kind, turn] = self._num_made.get((kind, turn), 0) + 1
        name = (schedule.fingerprint, numel, str(dtype), turn, generation)
        id = lane_id(zlib.crc32(repr(name).encode()), self._taken)
        self._taken.add(id)
        return Lane(lower(schedule, self._rank), schedule.bounds(numel), dtype, self._wire, id)

    def _forget(self) -> None:
        while self.num_bytes > self._max_bytes and len(self._lanes) > 1:
            (kind, _), lane = self._lanes.popitem(last=False)
            lane.is_forgotten = True
            self.num_bytes -= _bytes_of(kind)


def _bytes_of(kind: Kind) -> int:
    schedule, numel, dtype = kind
    return (schedule.bounds(numel)[-1] + schedule.landing(numel)) * dtype.itemsize
