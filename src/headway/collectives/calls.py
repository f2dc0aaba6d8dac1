"""The calls of an executor: numbered, watched, and ended by `PeerLost` on all ranks if one is gone.

In debug mode ranks also compare what they are about to do before each call.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import Tensor

from headway.collectives.ends import CLOSING_S, CUTTING_S, register, unregister
from headway.collectives.groups import OwnGroups, all_gather, make_gloo_group, wait_for
from headway.collectives.heartbeats import Heartbeats
from headway.collectives.members import Members
from headway.collectives.watch import Call, Watch
from headway.collectives.wire import FOREVER_S, BrokenWire, Wire, as_broken_wire
from headway.errors import HeadwayError, MismatchError, PeerLost

_MAX_TIMEOUT_S = 1e9
_INTENT_BYTES = 256


class Calls:
    """Process groups and wire of an executor, and the calls made on them, one at a time.

    Args:
        members: The ranks that take part.
        timeout_s: How long a rank may be silent before it counts as lost.
        debug: Whether ranks compare what they are about to do; None leaves it to ``HEADWAY_DEBUG``.
        cpu_only: Whether to make no process group for devices.
        beside: Other calls among the same ranks, which lend their heartbeats and are closed later. These calls then
            run in the background, and may wait for any time.
    """

    def __init__(
        self,
        members: Members,
        *,
        timeout_s: float,
        debug: bool | None,
        cpu_only: bool,
        beside: Calls | None = None,
    ) -> None:
        if not 0 < timeout_s < _MAX_TIMEOUT_S:
            raise ValueError(f"timeout_s is {timeout_s}, but a deadline must lie ahead: give seconds above 0")
        self.rank, self.num_ranks = members.rank, members.num_ranks
        self.others = frozenset(range(self.num_ranks)) - {self.rank}
        self._timeout_s = timeout_s
        self._names = members.names
        self._groups: OwnGroups | None = OwnGroups(members, timeout_s, cpu_only=cpu_only)
        self.patience_s = members.patience_s
        self.wire = Wire(self._groups.cpu, self.patience_s if beside is None else FOREVER_S)
        self._owns_heartbeats = beside is None
        self._heartbeats: Heartbeats = (
            Heartbeats.on(make_gloo_group(members, timeout_s)) if beside is None else beside._heartbeats
        )
        self._watch = Watch(self.wire, self._heartbeats, timeout_s, self._names, is_quiet=not self._owns_heartbeats)
        self._num_calls = 0
        self._is_calling = False
        self._broken: HeadwayError | None = None
        self._debug = is_debug(debug)
        register(self)
        self._compare_modes(self._groups)

    @contextmanager
    def call(
        self,
        what: str,
        tensor: Tensor,
        waited_for: Callable[[], frozenset[int]],
        *,
        kind: str = "",
        among: Iterable[int] | None = None,
    ) -> Iterator[OwnGroups]:
        """Make a call; whatever breaks in it raises `PeerLost`, then and in every later call.

        Args:
            what: The call, for messages.
            tensor: The payload.
            waited_for: Returns the ranks that this one waits for at the moment.
            kind: What else ranks must agree on.
            among: The ranks that take part; all by default.
        """
        if self._groups is None:
            raise ValueError("this executor is closed: make a new one")
        if self._broken is not None:
            raise self._broken
        self._num_calls += 1
        taking_part = self.others if among is None else frozenset(among)
        with self._watched(Call(self._num_calls, what, taking_part, waited_for)):
            if self._debug:
                intent = f"call {self._num_calls}: {what}{kind}, {tensor.numel()} x {tensor.dtype}"
                _compare(intent, self._groups, self.num_ranks)
            yield self._groups

    def later(self, what: str, wait: Callable[[], object]) -> Callable[[], None]:
        """Return a function that waits for the rest of the current call."""
        number = self._num_calls

        def finish() -> None:
            with self._watched(Call(number, what, self.others, lambda: self.others)):
                wait()

        return finish

    @contextmanager
    def all_or_nothing(self) -> Iterator[None]:
        """Abandon the executor if anything, even Ctrl-C, ends a call halfway: ranks would stay out of step."""
        try:
            yield
        except BrokenWire:
            raise
        except BaseException:
            self.abandon()
            raise

    def abandon(self) -> None:
        """Close all connections at once, so that no rank waits for this one; every later call raises."""
        if self._broken is None and self._groups is not None:
            self._broken = HeadwayError("an earlier call was interrupted: make a new executor, on all ranks")
            self._watch.leave()

    def close(self, *, wait_for_others: bool, deadline: float | None = None) -> None:
        """Release threads and process groups; a second call does nothing.

        Args:
            wait_for_others: Whether other ranks may still be receiving.
            deadline: Until when to wait for them (`time.monotonic`); a few seconds by default.
        """
        deadline = time.monotonic() + min(self._timeout_s, CLOSING_S) if deadline is None else deadline
        barrier = self._start_barrier() if wait_for_others else None
        if barrier is not None and not wait_for(barrier, deadline):
            self._watch.leave()
        self._release(deadline)

    def start_leaving(self, deadline: float, *, has_failed: bool) -> Callable[[], None]:
        """At the end of the process, cut off what is running; return a function that releases everything in time."""
        if has_failed or self._is_calling:
            self.abandon()
        barrier = self._start_barrier()

        def finish() -> None:
            wait_for(barrier, deadline)
            self._release(deadline)

        return finish

    def _start_barrier(self) -> dist.Work | None:
        return None if self._groups is None or self._broken is not None else self._groups.start_barrier()

    def _release(self, deadline: float) -> None:
        """Close everything; the deadline is that until which other ranks were waited for."""
        groups, self._groups = self._groups, None
        if groups is None:
            return
        unregister(self)
        self.wire.close(self.others)
        while self._is_calling and time.monotonic() < deadline + CUTTING_S:
            time.sleep(0.001)  # another thread has yet to come out of torch
        self._watch.close()
        self.wire.release()
        groups.release()
        if self._owns_heartbeats:
            self._heartbeats.close()

    def _compare_modes(self, groups: OwnGroups) -> None:
        """Make the first call: ranks must be in the same mode, or some would wait for others in every later one."""
        self._num_calls += 1
        try:
            with self._watched(Call(self._num_calls, "comparing debug modes", self.others, lambda: self.others)):
                _check_same_debug(self._debug, groups, self.num_ranks)
        except Exception:
            self.close(wait_for_others=True)
            raise

    @contextmanager
    def _watched(self, call: Call) -> Iterator[None]:
        self._is_calling = True
        self._watch.begin(call)
        try:
            yield
        except RuntimeError as error:
            deadline = max(call.begun, self.wire.waiting_since) + self.wire.patience_s
            broken = as_broken_wire(error, deadline)
            if broken is None:
                raise
            if self._broken is not None:
                raise self._broken from error  # this rank itself has cut the call off
            missing = self._watch.find_missing(broken, call.waited_for())
            after_s = self.wire.patience_s if broken.timed_out else self._watch.silent_for_s
            self._broken = PeerLost([self._names[rank] for rank in missing], call.what, after_s)
            raise self._broken from error
        finally:
            self._watch.end()
            self._is_calling = False


def is_debug(debug: bool | None) -> bool:
    """Return whether ranks compare their calls: the argument decides, or without one ``HEADWAY_DEBUG=1``."""
    return os.environ.get("HEADWAY_DEBUG", "") not in ("", "0") if debug is None else debug


def _check_same_debug(debug: bool, groups: OwnGroups, num_ranks: int) -> None:
    """Raise `ValueError` if only some ranks are in debug mode: they would wait for each other."""
    modes = torch.empty(num_ranks, dtype=torch.uint8)
    all_gather(modes, torch.tensor([debug], dtype=torch.uint8), groups.cpu)
    if int(modes.sum()) not in (0, num_ranks):
        ranks = torch.nonzero(modes).flatten().tolist()
        raise ValueError(f"debug mode is on for ranks {ranks} only: set HEADWAY_DEBUG or debug= alike on all ranks")


def _compare(intent: str, groups: OwnGroups, num_ranks: int) -> None:
    """Raise `MismatchError` with all ranks' intents unless they are the same."""
    own = torch.zeros(_INTENT_BYTES, dtype=torch.uint8)
    text = intent.encode()[:_INTENT_BYTES]
    own[: len(text)] = torch.frombuffer(bytearray(text), dtype=torch.uint8)
    gathered = torch.empty(num_ranks * _INTENT_BYTES, dtype=torch.uint8)
    all_gather(gathered, own, groups.cpu)
    intents = [bytes(row.tolist()).rstrip(b"\0").decode(errors="replace") for row in gathered.view(num_ranks, -1)]
    if len(set(intents)) > 1:
        raise MismatchError(intents)
