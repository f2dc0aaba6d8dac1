"""Who is there? Every rank asks every other, so that those who answer can do something together."""

from __future__ import annotations

import threading
import time

import torch
from torch import Tensor

from headway.collectives.wire import BrokenWire, Pending, Wire
from headway.errors import PeerLost
from headway.gossip.edge import WAITING

_TAG = 1
_NAMED, _LOST = 1, 2
_TICK_S = 0.002
_GRACE_S = 1.0
"""For ranks that somebody has lost."""


class RollCall:
    """Finds the ranks that are alive, alike on all of them, if none dies in the meantime.

    In the first round everybody tells everybody whom it is joined to, and whom it has lost; in the second, whom it has
    heard. Who has not been heard by all is left out by all, for good, and told so. Nobody waits long for a rank that
    another one says is lost; if it answers, it is alive all the same.

    **Cost**: two rounds of N - 1 small messages from every rank, 4 α.

    Args:
        wire: What carries the messages.
        rank: This rank.
        num_ranks: How many there were.
        timeout_s: How long to wait for an answer.
    """

    def __init__(self, wire: Wire, rank: int, num_ranks: int, timeout_s: float) -> None:
        self._wire = wire
        self._rank = rank
        self._num_ranks = num_ranks
        self._timeout_s = timeout_s
        self._num_rounds = 0
        self._alive = [peer for peer in range(num_ranks) if peer != rank]

    def hold(self, joined_to: tuple[int, ...], lost: tuple[int, ...]) -> dict[int, tuple[int, ...]]:
        """Return the ranks that are alive, this one among them, and whom each is joined to.

        Raises:
            PeerLost: The others have left out this one.
        """
        answers = self._round(joined_to, lost)
        self._alive = list(answers)
        heard = [self._rank, *answers]
        second = self._round(tuple(heard), ())
        common = set(heard).intersection(*second.values()) & {self._rank, *second}
        if self._rank not in common or (answers and not second):
            raise PeerLost([], "a roll call")
        self._alive = [peer for peer in sorted(common) if peer != self._rank]
        joined = {**answers, self._rank: joined_to}
        return {peer: joined[peer] for peer in sorted(common)}

    def _round(self, named: tuple[int, ...], lost: tuple[int, ...]) -> dict[int, tuple[int, ...]]:
        """Tell all two sets of ranks, and return the first of what each tells."""
        self._num_rounds += 1
        own = torch.zeros(1 + self._num_ranks, dtype=torch.int32)
        own[0] = self._num_rounds
        said = own[1:]
        said[list(named)], said[list(lost)] = _NAMED, _LOST
        waiting = [_Answer(self._wire, peer, own) for peer in self._alive]
        known_lost, answers = set(lost), {}
        start = time.monotonic()
        while waiting and time.monotonic() < start + self._timeout_s:
            came = [answer for answer in waiting if answer.is_over]
            waiting = [answer for answer in waiting if answer not in came]
            if time.monotonic() > start + _GRACE_S and {answer.peer for answer in waiting} <= known_lost:
                break
            for answer in came:
                if answer.has_come:
                    answers[answer.peer] = answer.ranks(_NAMED)
                    known_lost.update(answer.ranks(_LOST))
            time.sleep(0 if came else _TICK_S)
        if waiting and not answers:
            raise PeerLost([answer.peer for answer in waiting], "a roll call, which all ranks hold", self._timeout_s)
        return {peer: answers[peer] for peer in sorted(answers)}


class _Answer:
    """A message to a peer and the one from it, waited for on a thread (see `headway.gossip.edge`)."""

    def __init__(self, wire: Wire, peer: int, own: Tensor) -> None:
        self.peer = peer
        self._wire = wire
        self._own = own
        self._theirs = torch.zeros_like(own)
        self.has_come = False
        self._pending: list[Pending] = []
        try:
            self._pending.append(wire.receive(self._theirs, peer, _TAG))
            self._pending.append(wire.send(wire.as_bytes(own), peer, _TAG))
        except BrokenWire:
            self._pending.clear()
        self._thread = threading.Thread(target=self._wait, name=f"{WAITING}-roll-call-{peer}", daemon=True)
        self._thread.start()

    @property
    def is_over(self) -> bool:
        """Whether there is an answer, or will be none."""
        return not self._thread.is_alive()

    def ranks(self, said: int) -> tuple[int, ...]:
        """Return the ranks of which the peer says this."""
        return tuple(torch.nonzero(self._theirs[1:] == said).flatten().tolist())

    def _wait(self) -> None:
        try:
            for pending in self._pending:
                self._wire.wait_for_ever(pending)
            while self._pending and int(self._theirs[0]) < int(self._own[0]):  # of a round that this rank has given up
                self._wire.wait_for_ever(self._wire.receive(self._theirs, self.peer, _TAG))
            self.has_come = bool(self._pending) and int(self._theirs[0]) == int(self._own[0])
        except BrokenWire:
            return
