"""A lane: one rank's program with buffers and tags of its own, and its receives posted ahead.

torch's Gloo sends only after the receiver has said that it is ready; a receive that is posted late costs another α. So
the receives of a lane can be posted during the call before, long before any rank sends. That is safe because buffers
belong to the lane: what arrives early lands there, and callers get copies. `lane_cache` says which calls have lanes.
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
NUM_LANE_IDS = 1 << (31 - _PLACE_BITS)
"""A tag has 31 bits: the lane's id and the transfer's place in the schedule. Messages between the same two ranks with
the same tag stay in order, so places may wrap around, and an id may be used again."""

SERVICE_LANE = 0
"""The id whose tags carry control rounds, never a lane."""

_NOTHING = torch.zeros(1, dtype=torch.uint8)
"""The message that completes a posted receive that is not needed any more: Gloo accepts one that is too short."""


def tag(lane: int, place: int) -> int:
    """Return the tag of a transfer."""
    return lane << _PLACE_BITS | place & ((1 << _PLACE_BITS) - 1)


def memory_numel(program: Program, bounds: tuple[int, ...]) -> int:
    """Return how many entries a lane needs: the payload, and what this rank receives to add."""
    added = (placed.transfer for placed in program.receives if placed.transfer.reduce)
    return bounds[-1] + sum(bounds[transfer.stop] - bounds[transfer.start] for transfer in added)


class _Traffic:
    """The sends and receives of a lane that have been started, and the wait for them.

    The steps of a lane hold on to this and not to the lane: without a cycle of references a lane's memory is free as
    soon as the lane is dropped, not when the garbage collector finds it.
    """

    def __init__(self, wire: Wire) -> None:
        self.wire = wire
        self.receives: dict[int, Pending] = {}
        self.sends: dict[int, Pending] = {}
        self.waits_for: int | None = None

    def wait(self, pending: dict[int, Pending], place: int) -> None:
        """Wait until the transfer of this place is complete."""
        self.waits_for = pending[place].peer
        self.wire.wait(pending[place])
        self.waits_for = None
        del pending[place]


class Lane:
    """Buffers, tags and posted receives for one program and one size.

    Args:
        program: The steps of this rank.
        bounds: Where each chunk begins, in entries.
        wire: Carries the transfers.
        id: The upper bits of the tags.
        memory: For the buffers: `memory_numel` entries.
    """

    def __init__(self, program: Program, bounds: tuple[int, ...], wire: Wire, id: int, memory: Tensor) -> None:
        self.id = id
        self.buffer = memory[: bounds[-1]]
        self.is_posted = False
        """Whether the receives of the next call are posted, on all ranks alike, even those that receive nothing."""
        self._rank = program.rank
        self._bounds = bounds
        self._traffic = _Traffic(wire)
        steps = [step for step in program.steps if self._numel(_first(step))]
        receives = [placed for placed in program.receives if self._numel(placed)]
        self._landings = self._cut([placed for placed in receives if placed.transfer.reduce], memory)
        self._receives = [(placed, self._landings.get(placed.place, self._chunks(placed))) for placed in receives]
        self._sends = [step.placed for step in steps if isinstance(step, Send)]
        self._num_first_sends = len(list(takewhile(lambda step: isinstance(step, Send), steps)))
        self._steps = [self._compile(step) for step in steps]

    def run(self, meanwhile: Callable[[], None]) -> None:
        """Execute every step; the buffer then holds the result.

        Args:
            meanwhile: Called once all that can be sent at first has been sent, before the first wait.
        """
        self.post()
        for step in self._steps[: self._num_first_sends]:
            step()
        meanwhile()
        for step in self._steps[self._num_first_sends :]:
            step()
        self.is_posted = False

    def post(self) -> None:
        """Post those receives of the next call that are not posted yet: the buffer may change from now on."""
        self.is_posted = True
        posted, wire = self._traffic.receives, self._traffic.wire
        for placed, target in self._receives:
            if placed.place not in posted:
                posted[placed.place] = wire.receive(target, placed.transfer.src, tag(self.id, placed.place))

    def drain(self) -> None:
        """Complete the receives that peers have posted for the next call, which will not be made.

        All ranks do so at the same call; afterwards, each waits for its own receives with `settle`.
        """
        for placed in self._sends:
            number = tag(self.id, placed.place)
            self._traffic.sends[placed.place] = self._traffic.wire.send(_NOTHING, placed.transfer.dst, number)

    def settle(self) -> None:
        """Wait until nothing is under way."""
        for pending in (self._traffic.receives, self._traffic.sends):
            for place in tuple(pending):
                self._traffic.wait(pending, place)

    def waited_for(self) -> frozenset[int]:
        """Return the rank that this one waits for at the moment."""
        peer = self._traffic.waits_for
        return frozenset() if peer is None else frozenset([peer])

    def _numel(self, placed: PlacedTransfer) -> int:
        return self._bounds[placed.transfer.stop] - self._bounds[placed.transfer.start]

    def _chunks(self, placed: PlacedTransfer) -> Tensor:
        return self.buffer[self._bounds[placed.transfer.start] : self._bounds[placed.transfer.stop]]

    def _cut(self, added: list[PlacedTransfer], memory: Tensor) -> dict[int, Tensor]:
        """Give transfers that are added places to land, past the buffer."""
        sizes = [self._numel(placed) for placed in added]
        rest = memory[self.buffer.numel() : self.buffer.numel() + sum(sizes)]
        return {placed.place: landing for placed, landing in zip(added, rest.split_with_sizes(sizes), strict=True)}

    def _compile(self, step: Step) -> Callable[[], None]:
        """Bind a step to its tensors, once for all calls."""
        first, traffic = _first(step), self._traffic
        if isinstance(step, Send):
            return self._sender(first)
        if isinstance(step, Settle):
            return lambda: traffic.wait(traffic.sends, first.place)
        if step.transfer.reduce:
            return self._adder(step)
        return lambda: traffic.wait(traffic.receives, first.place)

    def _sender(self, placed: PlacedTransfer) -> Callable[[], None]:
        traffic, payload = self._traffic, self._traffic.wire.as_bytes(self._chunks(placed))
        place, peer, number = placed.place, placed.transfer.dst, tag(self.id, placed.place)

        def send() -> None:
            traffic.sends[place] = traffic.wire.send(payload, peer, number)

        return send

    def _adder(self, take: Take) -> Callable[[], None]:
        traffic, chunks = self._traffic, self._chunks(take.came[0])
        places = [placed.place for placed in take.came]
        landings = [self._landings[place] for place in places]
        num_below = sum(placed.transfer.src < self._rank for placed in take.came)
        below, above = landings[:num_below], landings[num_below:]

        def add() -> None:
            for place in places:
                traffic.wait(traffic.receives, place)
            add_in_order(below, chunks, above)

        return add


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
