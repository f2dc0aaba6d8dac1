"""What carries control rounds."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from headway.collectives import Executor, RankReports
from headway.collectives.ends import closing_deadline, register, unregister
from headway.exchange import Engine


@dataclass(frozen=True, kw_only=True)
class RoundRequest:
    """A control round to hold."""

    report: Tensor
    """This rank's numbers."""
    num_answers: int
    decide: Callable[[RankReports], Tensor]
    """Returns the answer; called on rank 0."""
    num_pings: int
    reconsider: Callable[[float], int]
    """Returns, given the latency so far, how many pings to send; called on rank 0."""
    pause_s: float | None
    """How long rank 0 waits after the end of the step; None to begin at once."""


class Transport(Protocol):
    """Carries control rounds, one at a time."""

    def start(self, request: RoundRequest) -> None:
        """Start a control round, and return at once; all ranks do so in the same step."""

    def end_step(self) -> None:
        """Take in that the exchanges of the step are over: rank 0 may begin."""

    def result(self) -> Tensor:
        """Wait for the answer of the round that was started."""

    def abandon(self) -> None:
        """Let no other rank wait for this one: training has failed."""

    def close(self, deadline: float | None = None) -> None:
        """Release threads and connections; wait for other ranks until the deadline (`time.monotonic`)."""


class InlineTransport:
    """Holds a control round at once, on the calling thread and on connections that are used for other things too.

    Args:
        executor: Runs the rounds; its owner closes it.
    """

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._answer = torch.zeros(0)

    def start(self, request: RoundRequest) -> None:
        self._answer = self._executor.control_round(
            request.report,
            request.num_answers,
            request.decide,
            num_pings=request.num_pings,
            reconsider=request.reconsider,
        )

    def end_step(self) -> None: ...

    def result(self) -> Tensor:
        return self._answer

    def abandon(self) -> None: ...

    def close(self, deadline: float | None = None) -> None: ...


class BackgroundTransport:
    """Holds control rounds on a thread and connections of its own, while training goes on.

    All ranks wait for rank 0's ping from the beginning of the step; rank 0 begins when the exchanges of the step are
    over and the network is idle.

    Args:
        executor: Runs the rounds, and nothing else; closed with the transport.
        patience_s: How long to wait for an answer that is due, if all ranks are alive.
    """

    def __init__(self, executor: Executor, patience_s: float) -> None:
        self._executor = executor
        self._patience_s = patience_s
        self._engine = Engine("headway-control")
        self._step_is_over = threading.Event()
        self._answer = torch.zeros(0)
        register(self)

    def start(self, request: RoundRequest) -> None:
        self._step_is_over.clear()
        self._engine.submit(lambda: self._hold(request), give_up=self._executor.abandon)

    def _hold(self, request: RoundRequest) -> None:
        def wait_for_end_of_step() -> None:
            if request.pause_s is not None:
                self._step_is_over.wait()
                time.sleep(request.pause_s)  # other ranks may still be sending

        self._answer = self._executor.control_round(
            request.report,
            request.num_answers,
            request.decide,
            ready=wait_for_end_of_step,
            num_pings=request.num_pings,
            reconsider=request.reconsider,
        )

    def end_step(self) -> None:
        self._step_is_over.set()

    def result(self) -> Tensor:
        self._step_is_over.set()
        try:
            self._engine.drain(self._patience_s)
        except TimeoutError:
            self.abandon()
            self._engine.drain()
        return self._answer

    def abandon(self) -> None:
        self._step_is_over.set()
        self._executor.abandon()

    def start_leaving(self, deadline: float, *, has_failed: bool) -> Callable[[], None]:
        """At the end of the process, let a round that is under way end, unless the script has failed.

        It gets half of the time: what is closed next waits for the other ranks, too.
        """
        self._step_is_over.set()
        if not has_failed:
            with contextlib.suppress(Exception):
                self._engine.drain(max(deadline - time.monotonic(), 0.0) / 2)
        return lambda: None

    def close(self, deadline: float | None = None) -> None:
        deadline = closing_deadline() if deadline is None else deadline
        unregister(self)
        self._step_is_over.set()
        try:
            self._engine.drain(max(deadline - time.monotonic(), 0.0))
        except Exception:  # a rank that is busy or gone must not keep this one waiting
            self._executor.abandon()
        self._engine.close()
        self._executor.close(deadline=deadline)
