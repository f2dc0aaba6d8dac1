"""A council: rank 0 calls, every rank reports, and gets its answer; latencies and clocks are compared on the way.

    call       0 -> i   sent at s by rank 0's clock, there at a' by rank i's
    echo       i -> 0   sent at s' by rank i's clock, there at a by rank 0's; at the last call with the report
    answer     0 -> i

    latency = ((a - s) - (s' - a')) / 2        offset of rank i's clock = ((a' - s) + (s' - a)) / 2

Offsets cancel in the first, the latency in the second, if both ways take the same time. A rank that is not yet
waiting when the call comes adds its delay to its latency, and half of it to its offset. Rank 0 looks at echoes one
after the other, those of near ranks first, as far as it knows them. Where calls are cheap it may call more than once:
for each rank the shortest way there and back counts.

**Cost**: 3 α, one more if receives are posted late, and 2 α for each further call; N - 1 messages of a few numbers in
and out of rank 0 each time, and one report a rank.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from headway.collectives.lane import SERVICE_LANE, tag
from headway.collectives.wire import Pending, Wire

_CALL, _ECHO, _ANSWER = (tag(SERVICE_LANE, place) for place in (2, 3, 4))
_AGAIN, _LAST = 0.0, 1.0
"""What a call says: echo it and wait for another one, or report and wait for the answer."""
_CALLING_S, _LEAST_CALLS, _MOST_CALLS = 0.04, 3, 16
_AT_ONCE_S = 1e-4
_NUM_STAMPS = 2
"""Of an echo, before the report: when the call was there, and when the echo was sent."""


@dataclass(frozen=True, kw_only=True)
class Hearing:
    """What the chair knows when it decides; usually that is rank 0."""

    reports: Tensor
    """A row for each rank."""
    latencies_s: list[float]
    """One way between rank 0 and each rank; 0 for rank 0 itself."""
    offsets_s: list[float]
    """By how much each rank's clock (`time.perf_counter`) is ahead of rank 0's."""
    num_calls: int = 1
    """How often rank 0 called."""

    @property
    def usual_latency_s(self) -> float:
        """The median over the other ranks: neither the nearest one nor one that was slow to answer stands for all."""
        return usual_latency_s(self.latencies_s[1:])


def usual_latency_s(latencies_s: Sequence[float]) -> float:
    """Return what stands for all pairs of ranks."""
    return statistics.median(latencies_s)


Decide = Callable[[Hearing], Tensor]
"""From reports to the answer; called at rank 0 only."""
Reconsider = Callable[[float], int]
"""From the usual latency, as far as it is known, to how many calls there should be; 0 for as many as planned."""


def calls_worth_making(latency_s: float) -> int:
    """Return how often to call in a council: more often where it is cheap, and threads that wake late count much.

    >>> calls_worth_making(0.001), calls_worth_making(0.03)
    (16, 3)
    """
    return max(_LEAST_CALLS, min(_MOST_CALLS, int(_CALLING_S / max(2 * latency_s, 1e-9))))


class Council:
    """One meeting. All ranks make one at about the same time, and `hold` it.

    Args:
        wire: What carries the messages.
        rank: This rank.
        chair: The one that calls, and decides.
        peers: The others, in the order in which the chair looks at what they send.
        report: This rank's numbers (float64), as many as everybody's.
        num_answers: How many numbers the answer has.
        num_calls: How often rank 0 calls.
        reconsider: Asked after each call but the last.
    """

    def __init__(
        self,
        wire: Wire,
        rank: int,
        chair: int,
        peers: Sequence[int],
        report: Tensor,
        num_answers: int,
        num_calls: int,
        reconsider: Reconsider = lambda _: 0,
    ) -> None:
        assert report.dtype == torch.float64
        self._wire = wire
        self._rank = rank
        self._chair = chair
        self._peers = list(peers)
        self._num_calls = num_calls
        self._reconsider = reconsider
        num_ranks = max(chair, *peers, 0) + 1
        self._reports = torch.zeros(num_ranks, _NUM_STAMPS + report.numel(), dtype=torch.float64)
        self._reports[rank, _NUM_STAMPS:] = report
        self._call = torch.zeros(1, dtype=torch.float64)
        self._answer = torch.zeros(num_answers, dtype=torch.float64)
        self._shortest_s = [math.inf if rank in peers else 0.0 for rank in range(num_ranks)]
        self._offsets_s = [0.0] * num_ranks
        self._were_there: set[int] = set()
        """Those whose echoes had come before they were looked at."""
        self._coming: dict[tuple[int, int], Pending] = {}
        self._leaving: list[Pending] = []
        self._deadline = 0.0
        self.waits_for: int | None = None
        self._post()

    @property
    def nearest_first(self) -> list[int]:
        """The peers by how near they turned out to be, at the chair; first those that may be nearer than it seems."""
        return sorted(self._peers, key=lambda peer: (peer not in self._were_there, self._shortest_s[peer]))

    def hold(self, decide: Decide, deadline: float, *, ready: Callable[[], None]) -> Tensor:
        """Report, be measured, and return the answer.

        Args:
            decide: Called at the chair.
            deadline: When to give up (of `time.monotonic`).
            ready: Called at the chair before it calls; returns when it is time to.
        """
        self._deadline = deadline
        if self._rank == self._chair:
            ready()
            self._preside(decide)
        else:
            self._attend()
        self._settle()
        return self._answer

    def _post(self) -> None:
        """Make ready for all that comes first: no message then meets a receiver that is not."""
        if self._rank == self._chair:
            self._expect_echoes(is_last=self._num_calls == 1)
        else:
            self._expect(self._call, self._chair, _CALL)
            self._expect(self._answer, self._chair, _ANSWER)

    def _preside(self, decide: Decide) -> None:
        number = 1
        while number < self._num_calls:
            self._call_all(_AGAIN)
            number += 1
            usual_s = usual_latency_s([self._shortest_s[peer] / 2 for peer in self._peers])
            self._num_calls = max(number, self._reconsider(usual_s) or self._num_calls)
            self._expect_echoes(is_last=number == self._num_calls)
        self._call_all(_LAST)
        hearing = Hearing(
            reports=self._reports[:, _NUM_STAMPS:],
            latencies_s=[shortest_s / 2 for shortest_s in self._shortest_s],
            offsets_s=self._offsets_s,
            num_calls=self._num_calls,
        )
        self._answer.copy_(decide(hearing))
        for peer in self._peers:
            self._send(self._answer, peer, _ANSWER)

    def _expect_echoes(self, *, is_last: bool) -> None:
        """Make ready for stamps, or at the last call for stamps and reports."""
        for peer in self._peers:
            self._expect(self._reports[peer] if is_last else self._reports[peer, :_NUM_STAMPS], peer, _ECHO)

    def _call_all(self, word: float) -> None:
        """Call everybody once; keep what the shortest way there and back so far tells of each."""
        self._call.fill_(word)
        called = {}
        for peer in self._peers:
            called[peer] = time.perf_counter()
            self._send(self._call, peer, _CALL)
        order, self._were_there = self.nearest_first, set()
        for peer in order:
            looked = time.perf_counter()
            came = self._wait(peer, _ECHO)
            if came - looked < _AT_ONCE_S:
                self._were_there.add(peer)
            heard, sent = self._reports[peer, :_NUM_STAMPS].tolist()
            there_and_back_s = (came - called[peer]) - (sent - heard)
            if there_and_back_s < self._shortest_s[peer]:
                self._shortest_s[peer] = there_and_back_s
                self._offsets_s[peer] = ((heard - called[peer]) + (sent - came)) / 2

    def _attend(self) -> None:
        report = self._reports[self._rank]
        word = _AGAIN
        while word == _AGAIN:
            heard = self._wait(self._chair, _CALL)
            word = self._call.item()
            if word == _AGAIN:
                self._expect(self._call, self._chair, _CALL)
            self._settle()  # what was sent before may change from now on
            report[0], report[1] = heard, time.perf_counter()
            self._send(report[:_NUM_STAMPS] if word == _AGAIN else report, self._chair, _ECHO)
        self._wait(self._chair, _ANSWER)

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
