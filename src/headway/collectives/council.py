"""A council: every rank reports to rank 0, which answers all of them; latencies and clocks are compared on the way.

    report     i -> 0   rank 0 waits for all: from here on everybody is waiting, and nobody is late
    call       0 -> i   sent at s by rank 0's clock, there at a' by rank i's
    echo       i -> 0   sent at s' by rank i's clock, there at a by rank 0's
    answer     0 -> i

    latency = ((a - s) - (s' - a')) / 2        offset of rank i's clock = ((a' - s) + (s' - a)) / 2

Offsets cancel in the first, the latency in the second, if both ways take the same time.

**Cost**: 5 α (the first receive is posted late), N - 1 messages of a few numbers in and out of rank 0 each time.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from headway.collectives.lane import SERVICE_LANE, tag
from headway.collectives.wire import Pending, Wire

_REPORT, _CALL, _ECHO, _ANSWER = (tag(SERVICE_LANE, place) for place in (2, 3, 4, 5))


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
    """One meeting. All ranks make one at the same time, and `hold` it.

    Args:
        wire: What carries the messages.
        rank: This rank; 0 decides.
        num_ranks: How many there are.
        report: This rank's numbers (float64), as many as everybody's.
        answer: Where the answer goes (float64).
    """

    def __init__(self, wire: Wire, rank: int, num_ranks: int, report: Tensor, answer: Tensor) -> None:
        assert report.dtype == answer.dtype == torch.float64
        self._wire = wire
        self._rank = rank
        self._num_ranks = num_ranks
        self._reports = torch.zeros(num_ranks, report.numel(), dtype=torch.float64)
        self._reports[rank] = report
        self._echoes = torch.zeros(num_ranks, 2, dtype=torch.float64)
        self._answer = answer
        self._coming: dict[tuple[int, int], Pending] = {}
        self._leaving: list[Pending] = []
        self._deadline = 0.0
        self.waits_for: int | None = None
        self._post()

    def hold(self, decide: Decide, deadline: float) -> Tensor:
        """Report, be measured, and return the answer; give up at ``deadline`` (of `time.monotonic`)."""
        self._deadline = deadline
        if self._rank == 0:
            self._chair(decide)
        else:
            self._attend()
        for pending in self._leaving:
            self._wire.wait(pending, deadline)
        return self._answer

    def _post(self) -> None:
        """Make ready for all that is going to come: only the first message then meets a receiver that is not."""
        if self._rank == 0:
            for peer in range(1, self._num_ranks):
                self._coming[peer, _REPORT] = self._wire.receive(self._reports[peer], peer, _REPORT)
                self._coming[peer, _ECHO] = self._wire.receive(self._echoes[peer], peer, _ECHO)
        else:
            self._coming[0, _CALL] = self._wire.receive(self._echoes[0], 0, _CALL)
            self._coming[0, _ANSWER] = self._wire.receive(self._answer, 0, _ANSWER)

    def _chair(self, decide: Decide) -> None:
        peers = range(1, self._num_ranks)
        for peer in peers:
            self._wait(peer, _REPORT)
        sent = [0.0] * self._num_ranks
        for peer in peers:
            sent[peer] = time.perf_counter()
            self._send(self._echoes[0], peer, _CALL)
        latencies_s, offsets_s = [0.0] * self._num_ranks, [0.0] * self._num_ranks
        for peer in peers:
            came = self._wait(peer, _ECHO)
            heard, echoed = self._echoes[peer].tolist()
            latencies_s[peer] = ((came - sent[peer]) - (echoed - heard)) / 2
            offsets_s[peer] = ((heard - sent[peer]) + (echoed - came)) / 2
        self._answer.copy_(decide(Hearing(reports=self._reports, latencies_s=latencies_s, offsets_s=offsets_s)))
        for peer in peers:
            self._send(self._answer, peer, _ANSWER)

    def _attend(self) -> None:
        self._send(self._reports[self._rank], 0, _REPORT)
        heard = self._wait(0, _CALL)
        self._send(torch.tensor([heard, time.perf_counter()], dtype=torch.float64), 0, _ECHO)
        self._wait(0, _ANSWER)

    def _send(self, numbers: Tensor, peer: int, tag: int) -> None:
        self._leaving.append(self._wire.send(self._wire.as_bytes(numbers), peer, tag))

    def _wait(self, peer: int, tag: int) -> float:
        """Wait for a message; return when it was there."""
        self.waits_for = peer
        self._wire.wait(self._coming[peer, tag], self._deadline)
        self.waits_for = None
        return time.perf_counter()
