"""The calls of an executor: numbered, watched, with a deadline, and ended by `PeerLost` on all ranks if one is gone.

In debug mode ranks also compare what they are about to do before each call.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import Tensor

from headway.collectives.groups import OwnGroups, native_all_gather
from headway.collectives.watch import Call, Watch
from headway.collectives.wire import GRACE_S, BrokenWire, Wire, as_broken_wire
from headway.errors import HeadwayError, MismatchError, PeerLost

_MAX_TIMEOUT_S = 1e9
_CLOSING_S = 5.0
"""How long a rank that closes waits for the others to do so."""
_INTENT_BYTES = 256


class Calls:
    """Process groups and wire of an executor, and the calls made on them, one at a time.

    Args:
        group: The ranks that take part; all by default.
        timeout_s: How long a call may take.
        debug: Whether ranks compare what they are about to do; None leaves it to ``HEADWAY_DEBUG``.
        cpu_only: Whether to make no process group for devices.
    """

    def __init__(
        self, group: dist.ProcessGroup | None, *, timeout_s: float, debug: bool | None, cpu_only: bool
    ) -> None:
        if not dist.is_initialized():
            raise ValueError("there is no process group: call torch.distributed.init_process_group first")
        if not 0 < timeout_s < _MAX_TIMEOUT_S:
            raise ValueError(f"timeout_s is {timeout_s}, but a deadline must lie ahead: give seconds above 0")
        self.rank = dist.get_rank(group)
        if self.rank < 0:
            raise ValueError("this process is not in the group: make the executor on its ranks only")
        self.num_ranks = dist.get_world_size(group)
        self.others = frozenset(range(self.num_ranks)) - {self.rank}
        self.deadline = 0.0
        """When the current call gives up (`time.monotonic`)."""
        self._timeout_s = timeout_s
        self._global_ranks = dist.get_process_group_ranks(group or dist.group.WORLD)
        self._groups: OwnGroups | None = OwnGroups(group, timeout_s + GRACE_S, cpu_only=cpu_only)
        self.wire = Wire(self._groups.cpu)
        self._watch = Watch(self.wire, self.rank, self.num_ranks)
        self._num_calls = 0
        self._broken: HeadwayError | None = None
        self._debug = is_debug(debug)
        _check_same_debug(self._debug, self._groups.cpu, self.num_ranks)

    @contextmanager
    def call(
        self, what: str, tensor: Tensor, waited_for: Callable[[], frozenset[int]], *, kind: str = ""
    ) -> Iterator[OwnGroups]:
        """Make a call; whatever breaks in it raises `PeerLost`, then and in every later call.

        Args:
            what: The call, for messages.
            tensor: The payload.
            waited_for: Returns the ranks that this one waits for at the moment.
            kind: What else ranks must agree on.
        """
        if self._groups is None:
            raise ValueError("this executor is closed: make a new one")
        if self._broken is not None:
            raise self._broken
        self._num_calls += 1
        self.deadline = time.monotonic() + self._timeout_s
        with self._watched(Call(self._num_calls, self.deadline, waited_for), what):
            if self._debug:
                intent = f"call {self._num_calls}: {what}{kind}, {tensor.numel()} x {tensor.dtype}"
                _compare(intent, self._groups.cpu, self.num_ranks)
            yield self._groups

    def later(self, what: str, wait: Callable[[], None]) -> Callable[[], None]:
        """Return a function that waits for the rest of the current call, by its deadline."""
        call = Call(self._num_calls, self.deadline, lambda: self.others)

        def finish() -> None:
            with self._watched(call, what):
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
            self.wire.close(self.others)

    def close(self, *, wait_for_others: bool) -> None:
        """Release threads and process groups; a second call does nothing."""
        groups, self._groups = self._groups, None
        if groups is None:
            return
        self._watch.close()
        if wait_for_others and self._broken is None and dist.is_initialized():
            groups.wait_for_all(min(self._timeout_s, _CLOSING_S))
        groups.destroy()
        self.wire.release()

    @contextmanager
    def _watched(self, call: Call, what: str) -> Iterator[None]:
        self._watch.begin(call)
        try:
            yield
        except RuntimeError as error:
            broken = as_broken_wire(error, call.deadline)
            if broken is None:
                raise
            missing = self._watch.find_missing(broken, call.waited_for())
            after_s = self._timeout_s if broken.timed_out else None
            self._broken = PeerLost([self._global_ranks[rank] for rank in missing], what, after_s)
            raise self._broken from error
        finally:
            self._watch.end()


def is_debug(debug: bool | None) -> bool:
    """Return whether ranks compare their calls: the argument decides, or without one ``HEADWAY_DEBUG=1``."""
    return os.environ.get("HEADWAY_DEBUG", "") not in ("", "0") if debug is None else debug


def _check_same_debug(debug: bool, group: dist.ProcessGroup, num_ranks: int) -> None:
    """Raise `ValueError` if only some ranks are in debug mode: they would wait for each other."""
    modes = torch.empty(num_ranks, dtype=torch.uint8)
    native_all_gather(modes, torch.tensor([debug], dtype=torch.uint8), group)
    if int(modes.sum()) not in (0, num_ranks):
        ranks = torch.nonzero(modes).flatten().tolist()
        raise ValueError(f"debug mode is on for ranks {ranks} only: set HEADWAY_DEBUG or debug= alike on all ranks")


def _compare(intent: str, group: dist.ProcessGroup, num_ranks: int) -> None:
    """Raise `MismatchError` with all ranks' intents unless they are the same."""
    own = torch.zeros(_INTENT_BYTES, dtype=torch.uint8)
    text = intent.encode()[:_INTENT_BYTES]
    own[: len(text)] = torch.frombuffer(bytearray(text), dtype=torch.uint8)
    gathered = torch.empty(num_ranks * _INTENT_BYTES, dtype=torch.uint8)
    native_all_gather(gathered, own, group)
    intents = [bytes(row.tolist()).rstrip(b"\0").decode(errors="replace") for row in gathered.view(num_ranks, -1)]
    if len(set(intents)) > 1:
        raise MismatchError(intents)
