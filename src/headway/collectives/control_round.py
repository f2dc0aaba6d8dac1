"""A control round: rank 0 pings, every rank sends its report, and all get rank 0's answer.

    ping       0 -> i   sent at s by rank 0's clock, received at a' by rank i's
    reply      i -> 0   sent at s' by rank i's clock, received at a by rank 0's; the last one carries the report
    answer     0 -> i

    latency = ((a - s) - (s' - a')) / 2        offset of rank i's clock = ((a' - s) + (s' - a)) / 2

Clock offsets cancel in the first equation; the latency cancels in the second, if both directions take equally long. A
rank that is not yet waiting when the ping arrives adds its delay to its latency, and half of it to its offset. Rank 0
reads the replies one by one, those of near ranks first as far as it knows them. Where pings are cheap it may send
several: the shortest round trip to each rank counts.

**Cost**: 3 α, one more if receives are posted late, and 2 α for each further ping; N - 1 messages of a few numbers in
and out of rank 0 each time, and one report per rank.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from headway.collectives.lanes import SERVICE_LANE, tag
from headway.collectives.wire import Pending, Wire

_PING, _REPLY, _ANSWER = (tag(SERVICE_LANE, place) for place in (2, 3, 4))
_MORE_PINGS, _LAST_PING = 0.0, 1.0
"""Content of a ping: reply and wait for another one, or reply with the report and wait for the answer."""
_PINGING_S, _MIN_PINGS, _MAX_PINGS = 0.04, 3, 16
_ALREADY_THERE_S = 1e-4
"""A reply that takes no longer than this to read had arrived before."""
_NUM_STAMPS = 2
"""Numbers of a reply before the report: when the ping was received, and when the reply was sent."""


@dataclass(frozen=True, kw_only=True)
class RankReports:
    """What the leader of a control round knows when it decides."""

    reports: Tensor
    """One row per rank."""
    latencies_s: list[float]
    """One-way latency between the leader and each rank; 0 for the leader itself."""
    offsets_s: list[float]
    """How far each rank's clock (`time.perf_counter`) is ahead of the leader's."""
    num_pings: int = 1
    """Number of pings sent to each rank."""

    @property
    def median_latency_s(self) -> float:
        """The median over the ranks other than 0, so that neither the nearest nor a slow one stands for all."""
        return statistics.median(self.latencies_s[1:])


Decide = Callable[[RankReports], Tensor]
"""Computes the answer from the reports; called on the leader only."""
Reconsider = Callable[[float], int]
"""Takes the median latency measured so far and returns how many pings to send; 0 keeps the planned number."""


def pings_worth_sending(latency_s: float) -> int:
    """Return how many pings a control round should send: more where latency is low and thread wake-up adds noise.

    >>> pings_worth_sending(0.001), pings_worth_sending(0.03)
    (16, 3)
    """
    return max(_MIN_PINGS, min(_MAX_PINGS, int(_PINGING_S / max(2 * latency_s, 1e-9))))


class ControlRound:
    """One control round. All ranks create one at about the same time and `run` it.

    Args:
        wire: Carries the messages.
        rank: This rank.
        leader: The rank that pings and decides.
        peers: The other ranks, in the order in which the leader reads their replies.
        report: This rank's numbers (float64); equally many on every rank.
        num_answers: How many numbers the answer has.
        num_pings: How many pings the leader sends.
        reconsider: Called on the leader after each ping but the last.
    """

    def __init__(
        self,
        wire: Wire,
        rank: int,
        leader: int,
        peers: Sequence[int],
        report: Tensor,
        num_answers: int,
        num_pings: int,
        reconsider: Reconsider = lambda _: 0,
    ) -> None:
        assert report.dtype == torch.float64
        self._wire = wire
        self._rank = rank
        self._leader = leader
        self._peers = list(peers)
        self._num_pings = num_pings
        self._reconsider = reconsider
        num_ranks = max(leader, *peers, 0) + 1
        self._reports = torch.zeros(num_ranks, _NUM_STAMPS + report.numel(), dtype=torch.float64)
        self._reports[rank, _NUM_STAMPS:] = report
        self._ping = torch.zeros(1, dtype=torch.float64)
        self._answer = torch.zeros(num_answers, dtype=torch.float64)
        self._round_trips_s = [math.inf if rank in peers else 0.0 for rank in range(num_ranks)]
        self._offsets_s = [0.0] * num_ranks
        self._arrived_early: set[int] = set()
        """Ranks whose replies had arrived before they were read."""
        self._receives: dict[tuple[int, int], Pending] = {}
        self._sends: list[Pending] = []
        self.waits_for: int | None = None
        if rank == leader:
            self._post_replies(is_last=num_pings == 1)
        else:
            self._post(self._ping, leader, _PING)
            self._post(self._answer, leader, _ANSWER)

    @property
    def nearest_first(self) -> list[int]:
        """The peers by measured distance, on the leader; first those that may be nearer than measured."""
        return sorted(self._peers, key=lambda peer: (peer not in self._arrived_early, self._round_trips_s[peer]))

    def run(self, decide: Decide, *, ready: Callable[[], None] = lambda: None) -> Tensor:
        """Report, measure latencies and clocks, and return the answer.

        Args:
            decide: Called on the leader.
            ready: Called on the leader before the first ping; returns when it is time to send it.
        """
        if self._rank == self._leader:
            ready()
            self._lead(decide)
        else:
            self._follow()
        self._settle()
        return self._answer

    def _lead(self, decide: Decide) -> None:
        number = 1
        while number < self._num_pings:
            self._ping_all(_MORE_PINGS)
            number += 1
            median_s = statistics.median(self._round_trips_s[peer] / 2 for peer in self._peers)
            self._num_pings = max(number, self._reconsider(median_s) or self._num_pings)
            self._post_replies(is_last=number == self._num_pings)
        self._ping_all(_LAST_PING)
        reports = RankReports(
            reports=self._reports[:, _NUM_STAMPS:],
            latencies_s=[seconds / 2 for seconds in self._round_trips_s],
            offsets_s=self._offsets_s,
            num_pings=self._num_pings,
        )
        self._answer.copy_(decide(reports))
        for peer in self._peers:
            self._send(self._answer, peer, _ANSWER)

    def _ping_all(self, content: float) -> None:
        """Ping every peer once; keep what its shortest round trip so far says."""
        self._ping.fill_(content)
        pinged = {}
        for peer in self._peers:
            pinged[peer] = time.perf_counter()
            self._send(self._ping, peer, _PING)
        order, self._arrived_early = self.nearest_first, set()
        for peer in order:
            before = time.perf_counter()
            received = self._wait(peer, _REPLY)
            if received - before < _ALREADY_THERE_S:
                self._arrived_early.add(peer)
            there, replied = self._reports[peer, :_NUM_STAMPS].tolist()
            round_trip_s = (received - pinged[peer]) - (replied - there)
            if round_trip_s < self._round_trips_s[peer]:
                self._round_trips_s[peer] = round_trip_s
                self._offsets_s[peer] = ((there - pinged[peer]) + (replied - received)) / 2

    def _follow(self) -> None:
        report = self._reports[self._rank]
        is_last = False
        while not is_last:
            received = self._wait(self._leader, _PING)
            is_last = self._ping.item() == _LAST_PING
            if not is_last:
                self._post(self._ping, self._leader, _PING)
            self._settle()  # the reply's memory is about to change
            report[0], report[1] = received, time.perf_counter()
            self._send(report if is_last else report[:_NUM_STAMPS], self._leader, _REPLY)
        self._wait(self._leader, _ANSWER)

    def _post_replies(self, *, is_last: bool) -> None:
        """Post receives for the replies: stamps, and with the last ping also reports."""
        for peer in self._peers:
            self._post(self._reports[peer] if is_last else self._reports[peer, :_NUM_STAMPS], peer, _REPLY)

    def _post(self, target: Tensor, peer: int, tag: int) -> None:
        self._receives[peer, tag] = self._wire.receive(target, peer, tag)

    def _send(self, numbers: Tensor, peer: int, tag: int) -> None:
        self._sends.append(self._wire.send(self._wire.as_bytes(numbers), peer, tag))

    def _settle(self) -> None:
        for pending in self._sends:
            self._wire.wait(pending)
        self._sends.clear()

    def _wait(self, peer: int, tag: int) -> float:
        """Wait for a message; return when it was received."""
        self.waits_for = peer
        self._wire.wait(self._receives[peer, tag])
        received = time.perf_counter()
        self.waits_for = None
        return received
