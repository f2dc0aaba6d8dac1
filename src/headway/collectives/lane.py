"""A lane: one rank's program with buffers and tags of its own, its receives posted ahead.

torch's Gloo sends only when the receiver's notice has come that it is ready; one that is given late costs another
α. So a lane's receives are posted during the call before, long before anybody sends. That is safe because buffers
belong to the lane: what comes early lands there, and callers get copies.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import takewhile

import torch
from torch import Tensor

from headway.collectives.program import Program, Send, Settle, Step, Take
from headway.collectives.schedule import PlacedTransfer
from headway.collectives.wire import Pending, Wire

_PLACE_BITS = 11
_NUM_IDS = 1 << (31 - _PLACE_BITS)
"""A tag has 31 bits: the lane's id, and the transfer's place in the schedule. Messages between the same two ranks with
the same tag keep their order, so that places may wrap round."""

SERVICE_LANE = 0
"""The id whose tags carry notices (see `watch`) and councils, never a lane."""


def lane_id(fingerprint: int, taken: set[int]) -> int:
    """Return an id that follows from what the lane is for, past those taken: ranks that disagree hardly ever meet.

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
        program: What this rank does.
        bounds: Where each chunk begins, in entries.
        dtype: The type of an entry.
        wire: What carries the transfers.
        id: From `lane_id`.
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
        self._coming: dict[int, Pending] = {}
        self._leaving: dict[int, Pending] = {}
        self._deadline = 0.0
        self._waits_for: int | None = None
        self.is_forgotten = False
        """Whether nobody will use it again."""

    def run(self, deadline: float, meanwhile: Callable[[], None]) -> None:
        """Take every step, until ``deadline`` (of `time.monotonic`); the buffer then holds the result.

        Args:
            deadline: When to give up.
            meanwhile: Called when there is nothing left to send before something has to be waited for.
        """
        self._deadline = deadline
        self.post()
        for step in self._steps[: self._num_first_sends]:
            step()
        meanwhile()
        for step in self._steps[self._num_first_sends :]:
            step()

    def post(self) -> None:
        """Post the receives of the next call, but for those that are: the buffer may change from now on."""
        for placed in () if self.is_forgotten else self._program.receives:
            target = self._landings.get(placed.place, self._chunks(placed))
            if target.numel() and placed.place not in self._coming:
                self._coming[placed.place] = self._wire.receive(target, placed.transfer.src, tag(self.id, placed.place))

    def waited_for(self) -> frozenset[int]:
        """Return the rank that this one waits for right now."""
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
            return lambda: self._wait(self._leaving, first.place)
        if step.transfer.reduce:
            return self._adder(step, chunks)
        return lambda: self._wait(self._coming, first.place)

    def _sender(self, placed: PlacedTransfer, chunks: Tensor) -> Callable[[], None]:
        peer, number, payload = placed.transfer.dst, tag(self.id, placed.place), self._wire.as_bytes(chunks)

        def send() -> None:
            self._leaving[placed.place] = self._wire.send(payload, peer, number)

        return send

    def _adder(self, take: Take, chunks: Tensor) -> Callable[[], None]:
        places = [placed.place for placed in take.came]
        landings = [self._landings[place] for place in places]
        num_below = sum(placed.transfer.src < self._program.rank for placed in take.came)
        below, above = landings[:num_below], landings[num_below:]

        def add() -> None:
            for place in places:
                self._wait(self._coming, place)
            add_in_order(below, chunks, above)

        return add

    def _wait(self, pending: dict[int, Pending], place: int) -> None:
        self._waits_for = pending[place].peer
        self._wire.wait(pending[place], self._deadline)
        self._waits_for = None
        del pending[place]


def _first(step: Step) -> PlacedTransfer:
    return step.came[0] if isinstance(step, Take) else step.placed


def add_in_order(below: list[Tensor], own: Tensor, above: list[Tensor]) -> None:
    """Add from left to right, into ``own``; what is below may be overwritten.

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
