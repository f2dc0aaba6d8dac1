"""Time of a schedule in rounds (times α) and payloads (times M β), counted on the schedule itself.

`critical_path` assumes the best: a transfer starts when its source has the chunks and its NIC is free, and a NIC sends
one transfer at a time and receives one at a time. Transfers that follow each other from one NIC then pay α
concurrently, and those that depend on each other pay it in sequence.

`shared_payloads` counts what TCP makes of it: a rank starts all that it can send at once, and each connection gets its
share of the NIC. The first of three transfers then takes as long as the others, three payloads' time instead of one,
and whatever depends on it waits as long.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from headway.collectives.schedule import Round, Schedule

_SAME_TIME = 1e-9


@dataclass(frozen=True, kw_only=True)
class CriticalPath:
    """How often a schedule pays α, and how many payloads it waits for."""

    num_rounds: int
    num_payloads: float


@lru_cache(maxsize=4096)
def critical_path(schedule: Schedule) -> CriticalPath:
    """Count rounds and payloads along the critical path, where all links are alike: t = rounds α + payloads M β.

    >>> from headway.collectives import build
    >>> critical_path(build("all_reduce", "ring", 8))
    CriticalPath(num_rounds=14, num_payloads=1.75)
    """
    rounds = _Clock(schedule, latency=1.0, chunk=0.0).run()
    chunks = _Clock(schedule, latency=0.0, chunk=1.0).run()
    return CriticalPath(num_rounds=round(rounds), num_payloads=chunks * _payloads_per_chunk(schedule))


@lru_cache(maxsize=4096)
def shared_payloads(schedule: Schedule) -> float:
    """Return the time until the last transfer has arrived, in units of one payload's time through an unshared NIC.

    >>> from headway.collectives import build
    >>> shared_payloads(build("broadcast", "tree", 8)), shared_payloads(build("broadcast", "two_shot", 8))
    (6.0, 1.857142857142857)
    """
    return _Fluid(schedule).run() * _payloads_per_chunk(schedule)


def _payloads_per_chunk(schedule: Schedule) -> float:
    return 1.0 if schedule.collective.one_chunk_a_rank else 1 / schedule.num_chunks


class _Clock:
    """Runs a schedule in virtual time, to find when each chunk arrives where."""

    def __init__(self, schedule: Schedule, *, latency: float, chunk: float) -> None:
        self.schedule = schedule
        self.latency = latency
        self.chunk = chunk
        self.ready = [[0.0] * schedule.num_chunks for _ in range(schedule.num_ranks)]
        self.out_free = [0.0] * schedule.num_ranks
        self.in_free = [0.0] * schedule.num_ranks

    def run(self) -> float:
        for transfers in self.schedule.rounds:
            self._round(transfers)
        return max(max(times) for times in self.ready)

    def _round(self, transfers: Round) -> None:
        """Send in list order, and receive in order of arrival."""
        arriving = []
        for place, t in enumerate(transfers):
            start = max(self.out_free[t.src], *self.ready[t.src][t.start : t.stop])
            self.out_free[t.src] = start + (t.stop - t.start) * self.chunk
            arriving.append((start + self.latency, place))
        for first_byte, place in sorted(arriving):
            t = transfers[place]
            end = self.in_free[t.dst] = max(first_byte, self.in_free[t.dst]) + (t.stop - t.start) * self.chunk
            self.ready[t.dst][t.start : t.stop] = [max(end, ready) for ready in self.ready[t.dst][t.start : t.stop]]


class _Fluid:
    """Transfers as flows: each gets the smaller of its shares of the sender's NIC and of the receiver's.

    Two ranks have one connection, so transfers between them follow each other.
    """

    def __init__(self, schedule: Schedule) -> None:
        self._transfers = schedule.transfers
        self._num_missing = [0] * len(self._transfers)
        self._dependants: list[list[int]] = [[] for _ in self._transfers]
        self._queues: dict[tuple[int, int], deque[int]] = {}
        self._left: dict[int, float] = {}
        """Active transfers, and how many chunks of each have yet to arrive."""
        self._find_dependencies(schedule)

    def run(self) -> float:
        """Return when the last transfer has arrived."""
        now = 0.0
        self._start([place for place, missing in enumerate(self._num_missing) if missing == 0])
        while self._left:
            rates = self._rates()
            step = min(left / rates[place] for place, left in self._left.items())
            now += step
            for place, rate in rates.items():
                self._left[place] -= step * rate
            self._finish([place for place, left in self._left.items() if left <= _SAME_TIME])
        return now

    def _start(self, places: Iterable[int]) -> None:
        for place in places:
            transfer = self._transfers[place]
            queue = self._queues.setdefault((transfer.src, transfer.dst), deque())
            queue.append(place)
            if len(queue) == 1:
                self._left[place] = float(transfer.stop - transfer.start)

    def _finish(self, places: Iterable[int]) -> None:
        for place in places:
            del self._left[place]
            transfer = self._transfers[place]
            queue = self._queues[transfer.src, transfer.dst]
            queue.popleft()
            if queue:
                following = self._transfers[queue[0]]
                self._left[queue[0]] = float(following.stop - following.start)
        for place in places:
            for later in self._dependants[place]:
                self._num_missing[later] -= 1
            self._start(later for later in self._dependants[place] if self._num_missing[later] == 0)

    def _rates(self) -> dict[int, float]:
        active = [(place, self._transfers[place]) for place in self._left]
        out, into = Counter(t.src for _, t in active), Counter(t.dst for _, t in active)
        return {place: 1 / max(out[t.src], into[t.dst]) for place, t in active}

    def _find_dependencies(self, schedule: Schedule) -> None:
        """A transfer waits for those of earlier rounds that brought its chunks to the rank that sends it."""
        brought: dict[tuple[int, int], list[int]] = {}
        place = 0
        for transfers in schedule.rounds:
            first = place
            for transfer in transfers:
                chunks = range(transfer.start, transfer.stop)
                needed = {source for chunk in chunks for source in brought.get((transfer.src, chunk), ())}
                self._num_missing[place] = len(needed)
                for source in needed:
                    self._dependants[source].append(place)
                place += 1
            for offset, transfer in enumerate(transfers):
                for chunk in range(transfer.start, transfer.stop):
                    if transfer.reduce:
                        brought.setdefault((transfer.dst, chunk), []).append(first + offset)
                    else:
                        brought[transfer.dst, chunk] = [first + offset]
