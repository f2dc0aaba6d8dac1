"""The lanes of an executor: two for each kind of call, taken in turn, as many as memory allows."""

from __future__ import annotations

import zlib
from collections import OrderedDict

import torch

from headway.collectives.lane import Lane, lane_id
from headway.collectives.program import lower
from headway.collectives.schedule import Schedule
from headway.collectives.wire import Wire

_DEPTH = 2
"""Lanes that take turns: the receives of one are posted during the call of the other."""

Key = tuple[Schedule, int, torch.dtype, int]


class Lanes:
    """Makes lanes, and forgets those not used for longest.

    All ranks make the same calls in the same order, and count for a lane what it takes at the busiest rank, so they
    make and forget the same lanes: nobody sends on a lane that its peer has forgotten, and an id is never used
    again.

    Args:
        wire: What carries the transfers.
        rank: This rank.
        max_bytes: How much memory lanes may hold; the one in use is kept whatever it holds.
    """

    def __init__(self, wire: Wire, rank: int, max_bytes: int) -> None:
        self._wire = wire
        self._rank = rank
        self._max_bytes = max_bytes
        self._lanes: OrderedDict[Key, Lane] = OrderedDict()
        self._turn: dict[tuple[Schedule, int, torch.dtype], int] = {}
        self._num_made: dict[Key, int] = {}
        self._taken: set[int] = set()
        self.num_bytes = 0
        """How much memory the lanes hold at the busiest rank."""

    def next(self, schedule: Schedule, numel: int, dtype: torch.dtype) -> Lane:
        """Return the lane for the next call of this kind."""
        kind = (schedule, numel, dtype)
        turn = self._turn[kind] = (self._turn.get(kind, -1) + 1) % _DEPTH
        key = (*kind, turn)
        if key not in self._lanes:
            self._lanes[key] = self._make(key)
            self.num_bytes += _bytes_of(key)
        self._lanes.move_to_end(key)
        self._forget()
        return self._lanes[key]

    def _make(self, key: Key) -> Lane:
        schedule, numel, dtype, turn = key
        generation = self._num_made[key] = self._num_made.get(key, 0) + 1
        kind = (schedule.fingerprint, numel, str(dtype), turn, generation)
        id = lane_id(zlib.crc32(repr(kind).encode()), self._taken)
        self._taken.add(id)
        return Lane(lower(schedule, self._rank), schedule.bounds(numel), dtype, self._wire, id)

    def _forget(self) -> None:
        while self.num_bytes > self._max_bytes and len(self._lanes) > 1:
            key, lane = self._lanes.popitem(last=False)
            lane.is_forgotten = True
            self.num_bytes -= _bytes_of(key)


def _bytes_of(key: Key) -> int:
    schedule, numel, dtype, _ = key
    return (schedule.bounds(numel)[-1] + schedule.landing(numel)) * dtype.itemsize
