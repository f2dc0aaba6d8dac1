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

    All ranks make the same calls in the same order, so they make and forget the same lanes: nobody sends on a lane that
    its peer has forgotten, and an id is never used again.

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
        self._num_calls: dict[tuple[Schedule, int, torch.dtype], int] = {}
        self._taken: set[int] = set()

    @property
    def num_bytes(self) -> int:
        """How much memory the lanes hold."""
        return sum(lane.num_bytes for lane in self._lanes.values())

    def next(self, schedule: Schedule, numel: int, dtype: torch.dtype) -> Lane:
        """Return the lane for the next call of this kind."""
        turn = self._num_calls[schedule, numel, dtype] = (
            self._num_calls.get((schedule, numel, dtype), -1) + 1
        ) % _DEPTH
        key = (schedule, numel, dtype, turn)
        if key not in self._lanes:
            self._lanes[key] = self._make(*key)
        self._lanes.move_to_end(key)
        self._forget()
        return self._lanes[key]

    def _make(self, schedule: Schedule, numel: int, dtype: torch.dtype, turn: int) -> Lane:
        id = lane_id(zlib.crc32(repr((schedule.fingerprint, numel, str(dtype), turn)).encode()), self._taken)
        self._taken.add(id)
        return Lane(lower(schedule, self._rank), schedule.bounds(numel), dtype, self._wire, id)

    def _forget(self) -> None:
        num_bytes = self.num_bytes
        while num_bytes > self._max_bytes and len(self._lanes) > 1:
            _, lane = self._lanes.popitem(last=False)
            num_bytes -= lane.num_bytes
