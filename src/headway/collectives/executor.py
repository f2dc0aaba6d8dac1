"""Runs schedules, and torch's own collectives behind the same calls."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from headway.collectives.calls import Calls
from headway.collectives.catalogue import NATIVE, build_for
from headway.collectives.control_round import ControlRound, Decide, RankReports, Reconsider
from headway.collectives.groups import all_gather
from headway.collectives.lane_cache import LaneCache
from headway.collectives.lanes import Lane
from headway.collectives.members import Members
from headway.collectives.neighbours import neighbour_exchange
from headway.collectives.schedule import Collective, Schedule

DEFAULT_TIMEOUT_S = 60.0
DEFAULT_SCRATCH_BYTES = 1 << 28


class Executor:
    """Collectives over the ranks of a group, on process groups of its own.

    All ranks make the same calls in the same order, from one thread at a time; concurrent collectives need an
    executor each. Sums are bitwise equal on all ranks, whatever the algorithm. After a `PeerLost` the executor cannot
    be used any more.

    Args:
        group: The ranks that take part; all by default. Each of them makes the executor.
        timeout_s: How long a rank may give no sign of life before it counts as lost. One that is alive is waited for
            as long as torch would wait: the timeout of the group.
        debug: Compare what ranks are about to do before each call; by default only if ``HEADWAY_DEBUG=1``.
        scratch_bytes: How much memory to keep between calls, for buffers with receives posted ahead.
        cpu_only: Whether all tensors are on the CPU: that saves a process group.
        beside: Another executor of the same ranks, closed later than this one: that saves another. Calls of this one
            run in the background then: they may take any time.

    >>> import tempfile, torch
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=0, world_size=1)
    ...     with Executor() as executor:
    ...         print(executor.all_reduce(torch.ones(3), "ring"))
    ...     dist.destroy_process_group()
    tensor([1., 1., 1.])
    """

    def __init__(
        self,
        group: dist.ProcessGroup | Members | None = None,
        *,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        debug: bool | None = None,
        scratch_bytes: int = DEFAULT_SCRATCH_BYTES,
        cpu_only: bool = False,
        beside: Executor | None = None,
    ) -> None:
        if scratch_bytes < 0:
            raise ValueError(f"scratch_bytes is {scratch_bytes}, but must be 0 or more")
        self._calls: Calls = Calls(
            group if isinstance(group, Members) else Members.of(group),
            timeout_s=timeout_s,
            debug=debug,
            cpu_only=cpu_only,
            beside=None if beside is None else beside._calls,
        )
        self.rank, self.num_ranks = self._calls.rank, self._calls.num_ranks
        self._lanes = LaneCache(self._calls.wire, self.rank, scratch_bytes)
        self._nearest_first = list(range(1, self.num_ranks))
        """The order in which rank 0 reads replies in a control round."""

    def __enter__(self) -> Executor:
        return self

    def __exit__(self, error_type: type[BaseException] | None, *_: object) -> None:
        self._close(wait_for_others=error_type is None)

    def close(self, *, deadline: float | None = None) -> None:
        """Release threads, buffers and process groups once all ranks have called it; a second call does nothing.

        Args:
            deadline: Until when to wait for the other ranks (`time.monotonic`); a few seconds by default.
        """
        self._close(wait_for_others=True, deadline=deadline)

    @property
    def patience_s(self) -> float:
        """How long a call waits for ranks that are alive: as long as torch would."""
        return self._calls.patience_s

    def abandon(self) -> None:
        """Close all connections at once, so that no rank waits for this one; every later call raises."""
        self._calls.abandon()

    @torch.no_grad()
    def all_reduce(self, tensor: Tensor, algorithm: str = NATIVE, *, among: Sequence[int] | None = None) -> Tensor:
        """Replace ``tensor`` by its sum over ranks, and return it.

        Args:
            tensor: The payload, of the same shape on all ranks.
            algorithm: "native", or one of `ALGORITHMS`.
            among: The ranks that take part, ascending, if not all. Only these make the call; not for "native".
        """
        if algorithm == NATIVE:
            if among is not None:
                raise ValueError("torch's own all-reduce is for all ranks: give another algorithm")
            flat = tensor.contiguous()
            self._native(Collective.ALL_REDUCE, flat, lambda group: group.allreduce([flat]).wait())
            return tensor if flat is tensor else tensor.copy_(flat)
        num_ranks = self.num_ranks if among is None else len(among)
        schedule = build_for(Collective.ALL_REDUCE, algorithm, num_ranks, tensor.nbytes)
        if among is not None and num_ranks < self.num_ranks:
            schedule = schedule.placed_among(among, self.num_ranks)
            if self.rank not in among:
                raise ValueError(f"rank {self.rank} is not among {list(among)}: only those call it")
        with self._scheduled(schedule, tensor, among) as lane:
            lane.buffer.view_as(tensor).copy_(tensor)
            self._run(lane)
            return tensor.copy_(lane.buffer.view_as(tensor))

    def start_all_reduce(self, tensor: Tensor) -> Callable[[], None]:
        """Start torch's own all-reduce of a contiguous tensor; return a function that waits for it.

        Several may be started before the first is waited for; they are waited for in the order of their starts.
        """
        what = f"{Collective.ALL_REDUCE.value} by {NATIVE} over {self.num_ranks} ranks"
        with self._calls.call(what, tensor, lambda: self._calls.others) as groups:
            work = groups.of(tensor).allreduce([tensor])
        return self._calls.later(what, work.wait)

    @torch.no_grad()
    def all_gather(self, message: Tensor, algorithm: str = NATIVE) -> Tensor:
        """Return all ranks' messages, in order of rank, along a new first dimension. All have the same shape."""
        if algorithm == NATIVE:
            flat = message.contiguous().view(-1)
            gathered = flat.new_empty(self.num_ranks * flat.numel())
            self._native(Collective.ALL_GATHER, message, lambda group: all_gather(gathered, flat, group))
            return gathered.view(self.num_ranks, *message.shape)
        schedule = build_for(Collective.ALL_GATHER, algorithm, self.num_ranks, message.nbytes)
        with self._scheduled(schedule, message) as lane:
            return self._exchange(lane, message).clone()

    @torch.no_grad()
    def broadcast(self, tensor: Tensor, root: int, algorithm: str = NATIVE) -> Tensor:
        """Replace ``tensor`` by that of rank ``root`` of the group, and return it."""
        if not 0 <= root < self.num_ranks:
            raise ValueError(f"root is {root}, but ranks go from 0 to {self.num_ranks - 1}")
        if algorithm == NATIVE:
            flat = tensor.contiguous()
            options = dist.BroadcastOptions()
            options.rootRank = root
            self._native(Collective.BROADCAST, flat, lambda group: group.broadcast([flat], options).wait(), root)
            return tensor if flat is tensor else tensor.copy_(flat)
        schedule = build_for(Collective.BROADCAST, algorithm, self.num_ranks, tensor.nbytes, root=root)
        with self._scheduled(schedule, tensor) as lane:
            if self.rank == root:
                lane.buffer.view_as(tensor).copy_(tensor)
            self._run(lane)
            return tensor if self.rank == root else tensor.copy_(lane.buffer.view_as(tensor))

    @torch.no_grad()
    def neighbour_exchange(
        self, message: Tensor, neighbours: Sequence[Iterable[int]], *, both_ways: bool = True
    ) -> dict[int, Tensor]:
        """Send ``message`` to this rank's neighbours, and return theirs by rank.

        Args:
            message: The message, of the same shape on all ranks.
            neighbours: The whole graph: the neighbours of each rank.
            both_ways: If False, edges are directed: a rank receives from its neighbours, but need not send to them.
        """
        schedule = neighbour_exchange(neighbours, both_ways=both_ways)
        if schedule.num_ranks != self.num_ranks:
            raise ValueError(f"the graph has {schedule.num_ranks} ranks, but the group has {self.num_ranks}")
        assert schedule.neighbours is not None
        with self._scheduled(schedule, message) as lane:
            gathered = self._exchange(lane, message)
            return {peer: gathered[peer].clone() for peer in schedule.neighbours[self.rank]}

    def control_round(
        self,
        report: Tensor,
        num_answers: int,
        decide: Decide,
        *,
        ready: Callable[[], None] = lambda: None,
        num_pings: int = 1,
        reconsider: Reconsider = lambda _: 0,
    ) -> Tensor:
        """Report some numbers to rank 0, and return what it answers to all ranks.

        Args:
            report: This rank's numbers (float64); equally many on every rank.
            num_answers: How many numbers the answer has.
            decide: Called on rank 0 with the reports and the latency and clock of every rank; returns the answer.
            ready: Called on rank 0 before the first ping; returns when it is time to send it.
            num_pings: How many pings rank 0 sends, for a better latency; ignored on the other ranks.
            reconsider: Called on rank 0 after each ping but the last, with the median latency so far; returns how many
                pings to send, or 0 to keep the planned number.
        """
        rounds: list[ControlRound] = []

        def waited_for() -> frozenset[int]:
            peer = rounds[0].waits_for if rounds else None
            return frozenset() if peer is None else frozenset([peer])

        calls, peers = self._calls, self._nearest_first
        with calls.call(f"control round of {self.num_ranks} ranks", report, waited_for), calls.all_or_nothing():
            rounds.append(ControlRound(calls.wire, self.rank, 0, peers, report, num_answers, num_pings, reconsider))
            answer = rounds[0].run(decide, ready=ready)
            self._nearest_first = rounds[0].nearest_first
            return answer

    def ping(self, partner: int | None, num_pings: int) -> float:
        """Return half the shortest round trip to a partner; both get the same value. All ranks call it, in pairs.

        Args:
            partner: The rank to measure, which calls with this one; None for a rank without a partner.
            num_pings: How many round trips to make.
        """
        calls, nothing = self._calls, torch.zeros(0, dtype=torch.float64)
        waited_for = frozenset() if partner is None else frozenset([partner])
        what = f"ping by pairs of {self.num_ranks} ranks"
        with calls.call(what, nothing, lambda: waited_for), calls.all_or_nothing():
            if partner is None:
                return 0.0
            leader, peer = min(self.rank, partner), max(self.rank, partner)

            def decide(reports: RankReports) -> Tensor:
                return torch.tensor([reports.latencies_s[peer]], dtype=torch.float64)

            pings = ControlRound(calls.wire, self.rank, leader, [peer], nothing, 1, num_pings)
            return pings.run(decide).item()

    def _exchange(self, lane: Lane, message: Tensor) -> Tensor:
        """Run a lane whose chunks are messages; return a view of all of them."""
        gathered = lane.buffer.view(self.num_ranks, *message.shape)
        gathered[self.rank].copy_(message)
        self._run(lane)
        return gathered

    def _run(self, lane: Lane) -> None:
        """Run a lane; while it waits, post the receives of lanes that are idle now."""
        with self._calls.all_or_nothing():
            lane.run(self._lanes.post_ahead)
            self._lanes.settle()

    def _close(self, *, wait_for_others: bool, deadline: float | None = None) -> None:
        self._calls.close(wait_for_others=wait_for_others, deadline=deadline)
        self._lanes.clear()

    @contextmanager
    def _scheduled(self, schedule: Schedule, tensor: Tensor, among: Sequence[int] | None = None) -> Iterator[Lane]:
        """Make a call on a lane; one that only some ranks make must not change which kinds of calls have lanes."""
        if tensor.device.type != "cpu":
            raise ValueError(f"{schedule.algorithm} moves CPU tensors, not {tensor.device}: use algorithm='native'")
        lanes: list[Lane] = []

        def waited_for() -> frozenset[int]:
            in_use = tuple(lanes)  # the watch's thread asks
            return in_use[0].waited_for() | self._lanes.waited_for() if in_use else self._calls.others

        kind = f" ({schedule.fingerprint:08x})"
        choose = self._lanes.next if among is None or len(among) == self.num_ranks else self._lanes.share
        with self._calls.call(str(schedule), tensor, waited_for, kind=kind, among=among):
            lanes.append(choose(schedule, tensor.numel(), tensor.dtype))
            yield lanes[0]
            lanes.clear()  # the watch keeps the last call, which must not keep its buffers

    def _native(
        self, collective: Collective, tensor: Tensor, run: Callable[[dist.ProcessGroup], Any], root: int | None = None
    ) -> None:
        """Call torch's own collective."""
        origin = "" if root is None else f" from rank {root}"
        what = f"{collective.value} by {NATIVE}{origin} over {self.num_ranks} ranks"
        with self._calls.call(what, tensor, lambda: self._calls.others) as groups:
            run(groups.of(tensor))
