"""A council: rank 0 calls, every rank reports, and gets its answer; latencies and clocks are compared on the way.

    call       0 -> i   sent at s by rank 0's clock, there at a' by rank i's
    echo       i -> 0   sent at s' by rank i's clock, there at a by rank 0's; at the last call with the report
    answer     0 -> i

    latency = ((a - s) - (s' - a')) / 2        offset of rank i's clock = ((a' - s) + (s' - a)) / 2

Offsets cancel in the first, the latency in the second, if both ways take the same time. A rank that is not yet
waiting when the call comes adds its delay to its latency, and half of it to its offset, and so do those whose echoes
rank 0 looks at later. Where calls are cheap rank 0 may call more than once: the shortest way there and back counts.

**Cost**: 3 α, one more if receives are posted late, and 2 α for each further call; N - 1 messages of a few numbers in
and out of rank 0 each time.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from headway.collectives.lane import SERVICE_LANE, tag
from headway.collectives.wire import Pending, Wire

_CALL, _ECHO, _ANSWER = (tag(SERVICE_LANE, place) for place in (2, 3, 4))
_AGAIN, _LAST = 0.0, 1.0
"""What a call says: echo it and wait for another one, or report and wait for the answer."""
_NUM_STAMPS = 2
"""Before a report: when the call was there, and when the report was sent."""


@dataclass(frozen=True, kw_only=True)
class Hearing:
    """What rank 0 knows when it decides."""

    reports: Tensor
    """A row for each rank."""
    latencies_s: list[float]
    """One way between rank 0 and each rank; 0 for rank 0 itself."""
    offsets_s: list[float]
    """By how much each rank's clock (`time.perf_counter`) is ahead of rank 0's."""


Decide = Callable[[Hearing], Tensor]
"""From reports to the answer; called at rank 0 only."""


class Council:
    """One meeting. All ranks make one at about the same time, and `hold` it.

    Args:
        wire: What carries the messages.
        rank: This rank; 0 decides.
        num_ranks: How many there are.
        report: This rank's numbers (float64), as many as everybody's.
        num_answers: How many numbers the answer has.
    """

    def __init__(self, wire: Wire, rank: int, num_ranks: int, report: Tensor, num_answers: int) -> None:
        assert report.dtype == torch.float64
        self._wire = wire
        self._rank = rank
        self._num_ranks = num_ranks
        self._reports = torch.zeros(num_ranks, _NUM_STAMPS + report.numel(), dtype=torch.float64)
        self._reports[rank, _NUM_STAMPS:] = report
        self._call = torch.zeros(1, dtype=torch.float64)
        self._answer = torch.zeros(num_answers, dtype=torch.float64)
        self._coming: dict[tuple[int, int], Pending] = {}
        self._leaving: list[Pending] = []
        self._deadline = 0.0
        self.waits_for: int | None = None
        self._post()

    def hold(self, decide: Decide, deadline: float, *, ready: Callable[[], None], num_calls: int) -> Tensor:
        """Report, be measured, and return the answer.

        Args:
            decide: Called at rank 0.
            deadline: When to give up (of `time.monotonic`).
            ready: Called at rank 0 before it calls; returns when it is time to.
            num_calls: How often rank 0 calls.
        """
        self._deadline = deadline
        if self._rank == 0:
            ready()
            self._chair(decide, num_calls)
        else:
            self._attend()
        self._settle()
        return self._answer

    def _post(self) -> None:
        """Make ready for all that comes first: no message then meets a receiver that is not."""
        if self._rank == 0:
            for peer in range(1, self._num_ranks):
                self._expect(self._reports[peer], peer, _ECHO)
        else:
            self._expect(self._call, 0, _CALL)
            self._expect(self._answer, 0, _ANSWER)

    def _chair(self, decide: Decide, num_calls: int) -> None:
        shortest_s, offsets_s = [math.inf] * self._num_ranks, [0.0] * self._num_ranks
        shortest_s[0] = 0.0
        for number in range(num_calls):
            self._call_all(_LAST if number == num_calls - 1 else _AGAIN, shortest_s, offsets_s)
        hearing = Hearing(
            reports=self._reports[:, _NUM_STAMPS:], latencies_s=[s / 2 for s in shortest_s], offsets_s=offsets_s
        )
        self._answer.copy_(decide(hearing))
        for peer in range(1, self._num_ranks):
            self._send(self._answer, peer, _ANSWER)

    def _call_all(self, word: float, shortest_s: list[float], offsets_s: list[float]) -> None:
        """Call everybody once; keep what the shortest way there and back so far tells of each."""
        self._call.fill_(word)
        called = [0.0] * self._num_ranks
        for peer in range(1, self._num_ranks):
            called[peer] = time.perf_counter()
            self._send(self._call, peer, _CALL)
        for peer in range(1, self._num_ranks):
            came = self._wait(peer, _ECHO)
            heard, sent = self._reports[peer, :_NUM_STAMPS].tolist()
            if word == _AGAIN:
                self._expect(self._reports[peer], peer, _ECHO)
            there_and_back_s = (came - called[peer]) - (sent - heard)
            if there_and_back_s < shortest_s[peer]:
                shortest_s[peer] = there_and_back_s
                offsets_s[peer] = ((heard - called[peer]) + (sent - came)) / 2

    def _attend(self) -> None:
        echo = self._reports[self._rank]
        word = _AGAIN
        while word == _AGAIN:
            heard = self._wait(0, _CALL)
            word = self._call.item()
            if word == _AGAIN:
                self._expect(self._call, 0, _CALL)
            self._settle()  # what was sent before may change from now on
            echo[0], echo[1] = heard, time.perf_counter()
            self._send(echo, 0, _ECHO)
        self._wait(0, _ANSWER)

    def _expect(self, target: Tensor, peer: int, tag: int) -> None:
        self._coming[peer, tag] = self._wire.receive(target, peer, tag)

    def _settle(self) -> None:
        for pending in self._leaving:
            self._wire.wait(pending, self._deadline)
        self._leaving.clear()

    def _send(self, numbers: Tensor, peer: int, tag: int) -> None:
        self._leaving.append(self._wire.send(self._wire.as_bytes(numbers), peer, tag))

    def _wait(self, peer: int, tag: int) -> float:
        """Wait for a message; return when it was there."""
        self.waits_for = peer
        self._wire.wait(self._coming[peer, tag], self._deadline)
        came = time.perf_counter()
        self.waits_for = None
        return came
