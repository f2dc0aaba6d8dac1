"""How many payloads a schedule waits for when transfers that are under way together share the NICs.

A rank starts all that it can send at once, and TCP gives each connection its share. So the first of three transfers is
not there after one payload's time, but like the others after three; what depends on it waits as long. The
alpha-beta time (`cost`) takes one transfer after the other, and is what could be reached.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from functools import lru_cache

from headway.collectives.schedule import Schedule

_SAME_TIME = 1e-9


@lru_cache(maxsize=4096)
def shared_payloads(schedule: Schedule) -> float:
    """Return the time until the last transfer is there, in times that a payload takes through a NIC of its own.

    >>> from headway.collectives import build
    >>> shared_payloads(build("broadcast", "tree", 8)), shared_payloads(build("broadcast", "two_shot", 8))
    (6.0, 1.857142857142857)
    """
    chunk = 1.0 if schedule.collective.one_chunk_a_rank else 1 / schedule.num_chunks
    return _Fluid(schedule).run() * chunk


class _Fluid:
    """Transfers as flows: each gets the smaller of its shares of the sender's NIC and of the receiver's.

    Two ranks have one connection: transfers between them follow each other.
    """

    def __init__(self, schedule: Schedule) -> None:
        self._transfers = schedule.transfers
        self._num_missing = [0] * len(self._transfers)
        self._waiting: list[list[int]] = [[] for _ in self._transfers]
        self._queues: dict[tuple[int, int], deque[int]] = {}
        self._left: dict[int, float] = {}
        """What is under way, and how many chunks of it are still to come."""
        self._find_dependencies(schedule)

    def run(self) -> float:
        """Return when the last transfer is there."""
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
            for later in self._waiting[place]:
                self._num_missing[later] -= 1
            self._start(later for later in self._waiting[place] if self._num_missing[later] == 0)

    def _rates(self) -> dict[int, float]:
        under_way = [(place, self._transfers[place]) for place in self._left]
        out, into = Counter(t.src for _, t in under_way), Counter(t.dst for _, t in under_way)
        return {place: 1 / max(out[t.src], into[t.dst]) for place, t in under_way}

    def _find_dependencies(self, schedule: Schedule) -> None:
        """A transfer waits for all of earlier rounds that brought its chunks to the rank that sends it."""
        brought: dict[tuple[int, int], list[int]] = {}
        place = 0
        for transfers in schedule.rounds:
            first = place
            for transfer in transfers:
                needed = {
                    source
                    for chunk in range(transfer.start, transfer.stop)
                    for source in brought.get((transfer.src, chunk), ())
                }
                self._num_missing[place] = len(needed)
                for source in needed:
                    self._waiting[source].append(place)
                place += 1
            for offset, transfer in enumerate(transfers):
                for chunk in range(transfer.start, transfer.stop):
                    if transfer.reduce:
                        brought.setdefault((transfer.dst, chunk), []).append(first + offset)
                    else:
                        brought[transfer.dst, chunk] = [first + offset]
