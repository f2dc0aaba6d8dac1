"""Runs schedules, and torch's own collectives behind the same calls."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from headway.collectives import agreement
from headway.collectives.catalogue import build_for
from headway.collectives.council import Council, Decide, Hearing, Reconsider
from headway.collectives.groups import OwnGroups, native_all_gather
from headway.collectives.lane import Lane
from headway.collectives.lanes import Lanes
from headway.collectives.neighbours import neighbour_exchange
from headway.collectives.schedule import Collective, Schedule
from headway.collectives.watch import Call, Watch
from headway.collectives.wire import GRACE_S, BrokenWire, Wire, as_broken_wire
from headway.errors import HeadwayError, PeerLost

NATIVE = "native"
"""torch's own collective: the best choice for dense payloads on fast networks, and the only one on NCCL."""

DEFAULT_TIMEOUT_S = 60.0
DEFAULT_SCRATCH_BYTES = 1 << 28
_FOREVER_S = 1e9
_PATIENCE_S = 5.0
"""How long a rank that closes waits for the others to do so."""


class Executor:
    """Collectives over the ranks of a group, on process groups of its own.

    All ranks make the same calls in the same order, from one thread at a time; concurrent collectives need an
    executor each. Sums are bitwise equal on all ranks, whatever the algorithm. After a `PeerLost` the executor is
    of no more use.

    Args:
        group: Whose ranks take part; all by default. Every rank of it makes the executor.
        timeout_s: How long a call may take before the ranks it waits for are given up.
        debug: Compare what ranks are about to do before each call; by default only if ``HEADWAY_DEBUG=1``.
        scratch_bytes: How much memory buffers may keep between calls.
        cpu_only: Whether no call will have tensors on a device: that saves a process group.

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
        group: dist.ProcessGroup | None = None,
        *,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        debug: bool | None = None,
        scratch_bytes: int = DEFAULT_SCRATCH_BYTES,
        cpu_only: bool = False,
    ) -> None:
        if not dist.is_initialized():
            raise ValueError("there is no process group: call torch.distributed.init_process_group first")
        if not 0 < timeout_s < _FOREVER_S:
            raise ValueError(f"timeout_s is {timeout_s}, but a deadline must lie ahead: give seconds above 0")
        if scratch_bytes < 0:
            raise ValueError(f"scratch_bytes is {scratch_bytes}, but must be 0 or more")
        self.rank = dist.get_rank(group)
        if self.rank < 0:
            raise ValueError("this process is not in the group: make the executor on its ranks only")
        self.num_ranks = dist.get_world_size(group)
        self._global_ranks = dist.get_process_group_ranks(group or dist.group.WORLD)
        self._timeout_s = timeout_s
        self._compares = agreement.wanted(debug)
        self._groups: OwnGroups | None = OwnGroups(group, timeout_s + GRACE_S, cpu_only=cpu_only)
        self._wire = Wire(self._groups.cpu)
        self._lanes = Lanes(self._wire, self.rank, scratch_bytes)
        self._watch = Watch(self._wire, self.rank, self.num_ranks)
        self._lane_at_rest: Lane | None = None
        self._num_calls = 0
        self._deadline = 0.0
        self._broken: HeadwayError | None = None
        self._nearest_first = list(range(1, self.num_ranks))
        """The order in which rank 0 looks at what comes in a council."""
        agreement.check_debug(self._compares, self._groups.cpu, self.num_ranks)

    def __enter__(self) -> Executor:
        return self

    def __exit__(self, error_type: type[BaseException] | None, *_: object) -> None:
        self._close(parting=error_type is None)

    def close(self) -> None:
        """Give back threads, buffers and process groups, once all ranks are here; a second call does nothing."""
        self._close(parting=True)

    def _close(self, *, parting: bool) -> None:
        groups, self._groups = self._groups, None
        if groups is None:
            return
        self._watch.close()
        if parting and self._broken is None and dist.is_initialized():
            groups.part(min(self._timeout_s, _PATIENCE_S))
        groups.destroy()
        self._wire.release()

    def forsake(self) -> None:
        """Close without waiting for the others, at the end of a process."""
        self._close(parting=False)

    def abandon(self) -> None:
        """Close all connections at once, so that the other ranks do not wait for this one; every later call raises."""
        if self._broken is None and self._groups is not None:
            self._broken = HeadwayError("an earlier call was interrupted: make a new executor, on all ranks")
            self._wire.close(self._others())

    @property
    def scratch_bytes(self) -> int:
        """How much memory buffers keep between calls, at the rank that needs most."""
        return self._lanes.num_bytes

    @torch.no_grad()
    def all_reduce(self, tensor: Tensor, algorithm: str = NATIVE, *, among: Sequence[int] | None = None) -> Tensor:
        """Replace ``tensor`` by its sum over ranks, and return it.

        Args:
            tensor: Of the same shape on all ranks.
            algorithm: How.
            among: The ranks that take part, ascending, if not all; only these call it, and by no native algorithm.
        """
        if algorithm == NATIVE:
            if among is not None:
                raise ValueError("torch's own all-reduce is for all ranks: give another algorithm")
            flat = tensor.contiguous()
            self._native(Collective.ALL_REDUCE, flat, lambda group: dist.all_reduce(flat, group=group))
            return tensor if flat is tensor else tensor.copy_(flat)
        num_ranks = self.num_ranks if among is None else len(among)
        schedule = build_for(Collective.ALL_REDUCE, algorithm, num_ranks, tensor.nbytes)
        if among is not None and num_ranks < self.num_ranks:
            schedule = schedule.placed_among(among, self.num_ranks)
            if self.rank not in among:
                raise ValueError(f"rank {self.rank} is not among {list(among)}: only those call it")
        with self._scheduled(schedule, tensor) as lane:
            lane.buffer.view_as(tensor).copy_(tensor)
            self._run(lane)
            return tensor.copy_(lane.buffer.view_as(tensor))

    def start_all_reduce(self, tensor: Tensor) -> Callable[[], None]:
        """Start torch's own all-reduce of a contiguous tensor; return what waits for it, in the order of starts."""
        what = f"{Collective.ALL_REDUCE.value} by {NATIVE} over {self.num_ranks} ranks"
        with self._call(what, what, tensor, self._others) as groups:
            group = groups.cpu if tensor.device.type == "cpu" else groups.device
            work = dist.all_reduce(tensor, group=group, async_op=True)
        number, deadline = self._num_calls, self._deadline

        def wait() -> None:
            with self._guarded(Call(number, deadline, self._others), what):
                if work is not None:
                    work.wait()

        return wait

    @torch.no_grad()
    def all_gather(self, message: Tensor, algorithm: str = NATIVE) -> Tensor:
        """Return every rank's message, in order of rank, along a new first dimension. All have the same shape."""
        if algorithm == NATIVE:
            flat = message.contiguous().view(-1)
            everyone = flat.new_empty(self.num_ranks * flat.numel())
            self._native(Collective.ALL_GATHER, message, lambda group: native_all_gather(everyone, flat, group))
            return everyone.view(self.num_ranks, *message.shape)
        schedule = build_for(Collective.ALL_GATHER, algorithm, self.num_ranks, message.nbytes)
        with self._scheduled(schedule, message) as lane:
            everyone = self._exchange(lane, message)
            return everyone.clone()

    @torch.no_grad()
    def broadcast(self, tensor: Tensor, root: int, algorithm: str = NATIVE) -> Tensor:
        """Replace ``tensor`` by that of rank ``root`` of the group, and return it."""
        if not 0 <= root < self.num_ranks:
            raise ValueError(f"root is {root}, but ranks go from 0 to {self.num_ranks - 1}")
        if algorithm == NATIVE:
            flat = tensor.contiguous()
            self._native(
                Collective.BROADCAST, flat, lambda group: dist.broadcast(flat, group=group, group_src=root), root
            )
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
            message: Of the same shape on all ranks.
            neighbours: The whole graph: for each rank, the ranks it is joined to.
            both_ways: If False, the ranks whose messages it gets, who need not get its own.
        """
        schedule = neighbour_exchange(neighbours, both_ways=both_ways)
        if schedule.num_ranks != self.num_ranks:
            raise ValueError(f"the graph has {schedule.num_ranks} ranks, but the group has {self.num_ranks}")
        assert schedule.neighbours is not None
        with self._scheduled(schedule, message) as lane:
            everyone = self._exchange(lane, message)
            return {peer: everyone[peer].clone() for peer in schedule.neighbours[self.rank]}

    def consult(
        self,
        report: Tensor,
        num_answers: int,
        decide: Decide,
        *,
        ready: Callable[[], None] = lambda: None,
        num_calls: int = 1,
        reconsider: Reconsider = lambda _: 0,
    ) -> Tensor:
        """Report some numbers to rank 0, and return what it answers to all.

        Args:
            report: This rank's numbers (float64), as many on every rank.
            num_answers: How many numbers the answer has.
            decide: Called at rank 0, with the reports and the latency and clock of every rank; returns the answer.
            ready: Called at rank 0 before it turns to the others; returns when it is time to.
            num_calls: How often rank 0 calls, for a surer latency; what it is elsewhere does not matter.
            reconsider: Called at rank 0 after each call but the last, with the usual latency so far; returns how many
                calls there should be, or 0 for as many as planned.
        """
        what = f"council of {self.num_ranks} ranks"
        council: list[Council] = []

        def waited_for() -> frozenset[int]:
            waits_for = council[0].waits_for if council else None
            return frozenset() if waits_for is None else frozenset([waits_for])

        with self._call(what, what, report, waited_for), self._all_or_nothing():
            peers = self._nearest_first
            council.append(Council(self._wire, self.rank, 0, peers, report, num_answers, num_calls, reconsider))
            answer = council[0].hold(decide, self._deadline, ready=ready)
            self._nearest_first = council[0].nearest_first
            return answer

    def ping(self, partner: int | None, num_calls: int) -> float:
        """Return half the shortest time to a partner and back; both get the same. All ranks call it, in pairs.

        Args:
            partner: Whose partner is this rank; None for a rank that rests.
            num_calls: How often to try.
        """
        what = f"ping by pairs of {self.num_ranks} ranks"
        nothing = torch.zeros(0, dtype=torch.float64)
        waited_for = frozenset() if partner is None else frozenset([partner])
        with self._call(what, what, nothing, lambda: waited_for), self._all_or_nothing():
            if partner is None:
                return 0.0
            chair, peer = min(self.rank, partner), max(self.rank, partner)
            council = Council(self._wire, self.rank, chair, [peer], nothing, 1, num_calls)

            def decide(hearing: Hearing) -> Tensor:
                return torch.tensor([hearing.latencies_s[peer]], dtype=torch.float64)

            return council.hold(decide, self._deadline, ready=lambda: None).item()

    def _exchange(self, lane: Lane, message: Tensor) -> Tensor:
        """Run a lane whose chunks are messages; return a view of all of them."""
        everyone = lane.buffer.view(self.num_ranks, *message.shape)
        everyone[self.rank].copy_(message)
        self._run(lane)
        return everyone

    def _run(self, lane: Lane) -> None:
        """Run a lane; while it waits, post the receives of the one used before, which is at rest now."""
        with self._all_or_nothing():
            lane.run(self._deadline, self._post_at_rest)

    @contextmanager
    def _all_or_nothing(self) -> Iterator[None]:
        """Give up if anything ends a call halfway, be it Ctrl-C: it leaves ranks apart for good."""
        try:
            yield
        except BrokenWire:
            raise
        except BaseException:
            self.abandon()
            raise

    def _post_at_rest(self) -> None:
        if self._lane_at_rest is not None:
            with contextlib.suppress(BrokenWire):  # if anybody needs what is gone, the lane's next call will tell
                self._lane_at_rest.post()

    @contextmanager
    def _scheduled(self, schedule: Schedule, tensor: Tensor) -> Iterator[Lane]:
        """Compare, and find the lane."""
        if tensor.device.type != "cpu":
            raise ValueError(f"{schedule.algorithm} moves CPU tensors, not {tensor.device}: use algorithm='native'")
        lanes: list[Lane] = []
        what = f"{schedule} ({schedule.fingerprint:08x})"
        with self._call(str(schedule), what, tensor, lambda: lanes[0].waited_for() if lanes else self._others()):
            lanes.append(self._lanes.next(schedule, tensor.numel(), tensor.dtype))
            yield lanes[0]
            self._lane_at_rest = lanes[0]

    def _native(
        self, collective: Collective, tensor: Tensor, run: Callable[[dist.ProcessGroup], Any], root: int | None = None
    ) -> None:
        """Call torch's own collective."""
        origin = "" if root is None else f" from rank {root}"
        what = f"{collective.value} by {NATIVE}{origin} over {self.num_ranks} ranks"
        with self._call(what, what, tensor, self._others) as groups:
            run(groups.cpu if tensor.device.type == "cpu" else groups.device)

    @contextmanager
    def _call(
        self, what: str, intent: str, tensor: Tensor, waited_for: Callable[[], frozenset[int]]
    ) -> Iterator[OwnGroups]:
        """Watch a call; turn what breaks in it into `PeerLost`, for good."""
        if self._groups is None:
            raise ValueError("this executor is closed: make a new one")
        if self._broken is not None:
            raise self._broken
        self._num_calls += 1
        self._deadline = time.monotonic() + self._timeout_s
        with self._guarded(Call(self._num_calls, self._deadline, waited_for), what):
            if self._compares:
                intent = f"call {self._num_calls}: {intent}, {tensor.numel()} x {tensor.dtype}"
                agreement.compare(intent, self._groups.cpu, self.num_ranks)
            yield self._groups

    @contextmanager
    def _guarded(self, call: Call, what: str) -> Iterator[None]:
        self._watch.begin(call)
        try:
            yield
        except RuntimeError as error:
            broken = as_broken_wire(error, call.deadline)
            if broken is None:
                raise
            self._broken = self._peer_lost(what, broken, call.waited_for())
            raise self._broken from error
        finally:
            self._watch.end()

    def _peer_lost(self, what: str, broken: BrokenWire, waited_for: frozenset[int]) -> PeerLost:
        missing = self._watch.find_missing(broken, waited_for)
        after_s = self._timeout_s if broken.timed_out else None
        return PeerLost([self._global_ranks[rank] for rank in missing], what, after_s)

    def _others(self) -> frozenset[int]:
        return frozenset(range(self.num_ranks)) - {self.rank}
