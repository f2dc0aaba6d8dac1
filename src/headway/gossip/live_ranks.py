"""The ranks that are alive, found by a roll call, and what they do together: averages."""

from __future__ import annotations

import math
import time

import torch
from torch import Tensor

from headway.collectives import Executor
from headway.collectives.wire import BrokenWire
from headway.errors import PeerLost
from headway.gossip.inbox import Inbox, MessageWire
from headway.gossip.monitoring import GossipEvents
from headway.gossip.neighbourhood import Neighbourhood
from headway.gossip.topology import components

_ALGORITHM = "halving_doubling"
_TAG = 1
_NAMED, _LOST = 1, 2
_TICK_S = 0.002
_GRACE_S = 1.0
"""How long to wait for ranks that another rank has lost."""


class RollCall:
    """Finds the ranks that are alive, with the same result on all of them if none dies in the meantime.

    In the first round every rank tells all others which neighbours it has and which it has lost; in the second, whose
    answers it got. All ranks leave out, for good, a rank that some of them did not hear from; that rank finds out.
    Ranks reported lost get only a short time to answer; one that does answer is alive nevertheless.

    **Cost**: two rounds of N - 1 small messages from every rank, at most 4 α.

    Args:
        wire: Transport of the messages.
        rank: This rank.
        num_ranks: Number of ranks at the start.
        timeout_s: How long to wait for an answer.
    """

    def __init__(self, wire: MessageWire, rank: int, num_ranks: int, timeout_s: float) -> None:
        self._wire = wire
        self._rank = rank
        self._num_ranks = num_ranks
        self._timeout_s = timeout_s
        self._num_rounds = 0
        self._alive = [peer for peer in range(num_ranks) if peer != rank]
        self._inboxes: dict[int, Inbox] = {}

    def hold(self, neighbours: tuple[int, ...], lost: tuple[int, ...]) -> dict[int, tuple[int, ...]]:
        """Return the ranks that are alive, this one included, and the ranks that each has named as neighbours.

        Raises:
            PeerLost: The others have left out this rank.
        """
        answers = self._round(neighbours, lost)
        self._alive = list(answers)
        heard = [self._rank, *answers]
        second = self._round(tuple(heard), ())
        common = set(heard).intersection(*second.values()) & {self._rank, *second}
        if self._rank not in common or (answers and not second):
            raise PeerLost([], "a roll call")
        self._alive = [peer for peer in sorted(common) if peer != self._rank]
        named = {**answers, self._rank: neighbours}
        return {peer: named[peer] for peer in sorted(common)}

    def _round(self, named: tuple[int, ...], lost: tuple[int, ...]) -> dict[int, tuple[int, ...]]:
        """Send two sets of ranks to all peers, and return the first of the two sets that each of them sends."""
        self._num_rounds += 1
        own = torch.zeros(1 + self._num_ranks, dtype=torch.int32)
        own[0] = self._num_rounds
        own[1:][list(named)], own[1:][list(lost)] = _NAMED, _LOST
        for peer in self._alive:
            if peer not in self._inboxes:
                self._inboxes[peer] = self._wire.open_inbox(peer, _TAG)
                self._inboxes[peer].post(torch.empty_like(own))
            self._wire.send_note(own, peer, _TAG)
        return self._collect(set(lost))

    def _collect(self, known_lost: set[int]) -> dict[int, tuple[int, ...]]:
        """Wait for all peers, but not long for those that are known to be lost; return the ranks that each names."""
        waiting, answers = set(self._alive), dict[int, tuple[int, ...]]()
        start = time.monotonic()
        while waiting and time.monotonic() < start + self._timeout_s:
            if waiting <= known_lost and time.monotonic() > start + _GRACE_S:
                break
            num_waiting = len(waiting)
            for peer in sorted(waiting):
                try:
                    answer = self._answer_of(peer)
                except BrokenWire:
                    waiting.remove(peer)
                    continue
                if answer is not None:
                    waiting.remove(peer)
                    answers[peer] = _ranks_marked(answer, _NAMED)
                    known_lost.update(_ranks_marked(answer, _LOST))
            time.sleep(0 if len(waiting) < num_waiting else _TICK_S)
        if waiting and not answers:
            raise PeerLost(waiting, "a roll call, which all ranks hold", self._timeout_s)
        return {peer: answers[peer] for peer in sorted(answers)}

    def _answer_of(self, peer: int) -> Tensor | None:
        """Return what a peer has sent in this round, or None if it has not yet; a peer that is ahead counts as gone."""
        inbox = self._inboxes[peer]
        while (message := inbox.get(0)) is not None:
            answer = message.view(torch.int32).clone()
            inbox.post(message)
            if int(answer[0]) > self._num_rounds:
                raise BrokenWire(peer, timed_out=False, cause="the peer has gone on without this rank")
            if int(answer[0]) == self._num_rounds:  # earlier rounds are those that this rank has given up
                return answer
        return None


def _ranks_marked(answer: Tensor, mark: int) -> tuple[int, ...]:
    return tuple(torch.nonzero(answer[1:] == mark).flatten().tolist())


class LiveRanks:
    """Averages over all ranks that are alive.

    Args:
        executor: Runs the sums.
        roll_call: Finds the ranks that are alive.
        neighbourhood: The neighbours of this rank, left and lost.
        events: Gets the ranks that are missing.
    """

    def __init__(
        self, executor: Executor, roll_call: RollCall, neighbourhood: Neighbourhood, events: GossipEvents
    ) -> None:
        self._executor = executor
        self._roll_call = roll_call
        self._neighbourhood = neighbourhood
        self._events = events
        self._alive = tuple(range(executor.num_ranks))

    def average(self, tensor: Tensor) -> Tensor:
        """Return the mean of a float32 tensor, the same on all ranks that are alive; all of them get it, or none.

        **Cost**: two roll calls and an all-reduce by halving and doubling: 8 α + 2 log N α + 2 M β.

        Raises:
            PeerLost: A rank was lost meanwhile. Gossip goes on, but there are no more averages.
        """
        alive = self.find()
        lost: PeerLost | None = None
        try:
            mean = self._mean(tensor, alive)
        except PeerLost as error:
            lost = error
        done = self._roll_call.hold(() if lost else (self._executor.rank,), self._neighbourhood.lost)
        failed = [rank for rank in alive if rank not in done.get(rank, ())]
        if failed:
            raise lost or PeerLost(failed, "an average")
        return mean

    def distance(self, x: Tensor) -> float:
        """Return the root mean square distance of models from their mean, √(Σ_i |x_i - x̄|² / N).

        **Cost**: that of an average, and another of one number.
        """
        off = (x - self.average(x)).double().square().sum()
        return math.sqrt(float(self.average(off.view(1).float())))

    def find(self) -> tuple[int, ...]:
        """Return the ranks that are alive; note who is missing, and whether the others are still connected."""
        neighbours = self._roll_call.hold(self._neighbourhood.ranks, self._neighbourhood.lost)
        missing = sorted(set(self._alive) - set(neighbours))
        self._alive = tuple(neighbours)
        if missing:
            places = {rank: place for place, rank in enumerate(neighbours)}
            parts = components([[places[peer] for peer in peers if peer in places] for peers in neighbours.values()])
            self._events.note_missing(missing, [[self._alive[place] for place in sorted(part)] for part in parts])
        return self._alive

    def check_state(self, misfit: str | None, step: int) -> None:
        """Raise on all ranks if the state to load does not fit on any of them, or is of another step.

        Args:
            misfit: Why this rank's state does not fit; None if it does.
            step: Step of this rank's state.
        """
        num_ranks, alive = self._executor.num_ranks, self.find()
        if len(alive) < num_ranks:
            lost = sorted(set(range(num_ranks)) - set(alive))
            raise ValueError(f"ranks {lost} are lost, and a state is for all ranks: start a new run")
        fits, steps = self._executor.all_gather(torch.tensor([misfit is None, step])).T.tolist()
        others = [rank for rank, theirs in enumerate(steps) if theirs != steps[0]]
        if misfit is None and not all(fits):
            misfit = f"the state of rank {fits.index(False)} does not fit"
        elif misfit is None and others:
            misfit = f"the states of ranks {others} are not of step {steps[0]}, as rank 0's is: load those of one step"
        if misfit is not None:
            raise ValueError(misfit)

    def _mean(self, tensor: Tensor, alive: tuple[int, ...]) -> Tensor:
        on_cpu = tensor.detach().to("cpu", copy=True)
        if len(alive) > 1 and on_cpu.numel():
            self._executor.all_reduce(on_cpu, _ALGORITHM, among=alive).div_(len(alive))
        return on_cpu.to(tensor.device)
