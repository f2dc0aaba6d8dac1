"""Which calls have lanes of their own, and what happens to lanes that have to make room for others.

Calls are of the same *kind* if they have the same schedule, number of entries and type. A kind has two lanes, which
take turns, so that the receives of one are posted while the other is in use. Lanes stay until others need their
memory. A kind for which there is no room uses the *shared* memory: receives are posted when the call begins, which
costs one α more, and nothing is under way after it.

All ranks make the same calls in the same order, and count what a lane needs at the busiest rank. So they make and
evict the same lanes at the same calls, give them the same ids, and need no messages to agree on them.
"""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import Container
from dataclasses import dataclass
from itertools import count

import torch

from headway.collectives.lanes import NUM_LANE_IDS, SERVICE_LANE, Lane, memory_numel
from headway.collectives.program import lower
from headway.collectives.schedule import Schedule
from headway.collectives.wire import BrokenWire, Wire

_LANES_PER_KIND = 2
_NUM_OWN_IDS = NUM_LANE_IDS // 2
"""Ids below are for lanes of one kind, which may have receives posted; those from here on are for shared memory."""
_TRANSFER_BYTES = 1 << 11
"""What Python, torch and Gloo need for a transfer of a lane, about."""
_MAX_KINDS = 1 << 10
"""How many kinds are remembered, with or without lanes; far fewer than there are ids."""

Kind = tuple[Schedule, int, torch.dtype]


@dataclass(slots=True)
class _KindState:
    """A known kind: the memory of one lane at the busiest rank, its lanes, and the number of its last call."""

    num_bytes: int
    lanes: tuple[Lane, ...] = ()  # the next one first
    last_call: int = 0


class LaneCache:
    """Makes lanes, and evicts those of the least recently called kinds when others need the memory.

    A kind evicts only kinds whose last call was before its own last call. So when the calls of a step need more than
    there is, some kinds keep their lanes, and the others share: nothing is made or evicted from then on. And when the
    calls change, the new ones have lanes from their second call on.

    An evicted lane may have receives posted. Every rank sends one byte in place of each message that a peer waits for,
    and waits for its own at the end of the call. Nothing is left behind, and the id is free again.

    Args:
        wire: Carries the transfers.
        rank: This rank.
        max_bytes: How much memory to keep between calls.
    """

    def __init__(self, wire: Wire, rank: int, max_bytes: int) -> None:
        self._wire = wire
        self._rank = rank
        self._max_bytes = max_bytes
        self._kinds: dict[Kind, _KindState] = {}  # the least recently called first
        self._num_calls = 0
        self._ids = {SERVICE_LANE}
        self._own_bytes = 0
        self._scratch = torch.empty(0, dtype=torch.uint8)
        self._previous: Lane | None = None
        self._ahead: list[Lane] = []
        self._draining: list[Lane] = []

    @property
    def num_bytes(self) -> int:
        """How much memory is kept: that of lanes, at the busiest rank, and that which kinds share."""
        return self._own_bytes + self._scratch.nbytes

    def next(self, schedule: Schedule, numel: int, dtype: torch.dtype) -> Lane:
        """Return the lane for the next call, which all ranks make."""
        kind = (schedule, numel, dtype)
        known = self._kinds.pop(kind, None) or _KindState(_bytes_of(kind))
        if not known.lanes and self._make_room(_LANES_PER_KIND * known.num_bytes, known.last_call):
            self._own_bytes += _LANES_PER_KIND * known.num_bytes
            known.lanes = tuple(self._make(kind, number) for number in range(_LANES_PER_KIND))
        self._num_calls = known.last_call = self._num_calls + 1
        self._kinds[kind] = known
        self._forget()
        if not known.lanes:
            return self._in_turn(self.share(*kind))
        known.lanes = (*known.lanes[1:], known.lanes[0])
        return self._in_turn(known.lanes[-1], known.lanes[:-1])

    def share(self, schedule: Schedule, numel: int, dtype: torch.dtype) -> Lane:
        """Return a lane on shared memory, for one call; some ranks may do so while others do not."""
        program, bounds = lower(schedule, self._rank), schedule.bounds(numel)
        num_bytes = memory_numel(program, bounds) * dtype.itemsize
        if self._scratch.nbytes < num_bytes:
            self._scratch = self._scratch.new_empty(0)  # not both at once
            self._scratch = self._scratch.new_empty(num_bytes)
        id = _NUM_OWN_IDS + _fingerprint((schedule, numel, dtype)) % _NUM_OWN_IDS
        return Lane(program, bounds, self._wire, id, self._scratch[:num_bytes].view(dtype))

    def post_ahead(self) -> None:
        """Post the receives of lanes that are idle now: those used in the last call, and the next of this kind."""
        ahead, self._ahead = self._ahead, []
        with contextlib.suppress(BrokenWire):  # if they are still needed, the lane's next call fails too
            for lane in ahead:
                lane.post()

    def settle(self) -> None:
        """Wait for what evicted lanes have under way, and drop shared memory for which there is no room."""
        while self._draining:
            self._draining[-1].settle()
            self._ids.discard(self._draining.pop().id)
        if self.num_bytes > self._max_bytes:
            self._scratch = self._scratch.new_empty(0)

    def waited_for(self) -> frozenset[int]:
        """Return the ranks that evicted lanes wait for at the moment."""
        return frozenset().union(*(lane.waited_for() for lane in tuple(self._draining)))

    def clear(self) -> None:
        """Drop all lanes and memory, when the connections are closed."""
        self._kinds.clear()
        self._own_bytes = 0
        self._scratch = self._scratch.new_empty(0)
        self._previous, self._ahead, self._draining = None, [], []

    def _in_turn(self, lane: Lane, others: tuple[Lane, ...] = ()) -> Lane:
        """Note which lanes are idle during this call."""
        self._ahead = [*others] if self._previous is None else [*others, self._previous]
        self._previous = lane if others else None
        return lane

    def _forget(self) -> None:
        """Forget the least recently called kind if there are too many."""
        if len(self._kinds) > _MAX_KINDS:
            self._evict(self._kinds.pop(next(iter(self._kinds))))

    def _make_room(self, num_bytes: int, last_call: int) -> bool:
        """Evict kinds whose last call was before this one, if that makes enough room; return whether it does."""
        room, evicted = self._max_bytes - self._own_bytes, []
        for known in self._kinds.values():
            if room >= num_bytes or known.last_call > last_call:
                break
            if known.lanes:
                evicted.append(known)
                room += _LANES_PER_KIND * known.num_bytes
        if room < num_bytes:
            return False
        for known in evicted:
            self._evict(known)
        return True

    def _make(self, kind: Kind, number: int) -> Lane:
        schedule, numel, dtype = kind
        program, bounds = lower(schedule, self._rank), schedule.bounds(numel)
        id = free_id(_fingerprint(kind, number), self._ids)
        self._ids.add(id)
        return Lane(program, bounds, self._wire, id, torch.empty(memory_numel(program, bounds), dtype=dtype))

    def _evict(self, known: _KindState) -> None:
        """Drop the lanes of a kind; those with posted receives only once these are complete."""
        self._own_bytes -= len(known.lanes) * known.num_bytes
        for lane in known.lanes:
            if lane is self._previous:
                self._previous = None
            if lane.is_posted:
                lane.drain()
                self._draining.append(lane)
            else:
                self._ids.discard(lane.id)
        known.lanes = ()


def free_id(fingerprint: int, taken: Container[int]) -> int:
    """Return an id derived from the kind of call, past those taken: ranks that disagree hardly ever share a tag.

    >>> free_id(_NUM_OWN_IDS + 7, {7, 8})
    9
    """
    return next(id for offset in count() if (id := (fingerprint + offset) % _NUM_OWN_IDS) not in taken)


def _fingerprint(kind: Kind, number: int = 0) -> int:
    """Return a number that is the same on all ranks, for one lane of a kind."""
    schedule, numel, dtype = kind
    return zlib.crc32(repr((schedule.fingerprint, numel, str(dtype), number)).encode())


def _bytes_of(kind: Kind) -> int:
    """Return what a lane of a kind needs at the busiest rank."""
    schedule, numel, dtype = kind
    num_transfers = max(map(len, schedule.parts))
    return (schedule.bounds(numel)[-1] + schedule.landing(numel)) * dtype.itemsize + num_transfers * _TRANSFER_BYTES
