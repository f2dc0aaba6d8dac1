"""What averages the tensors of a run: the hook gives it gradients, local steps give it differences of models."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from zlib import crc32

import torch
import torch.distributed as dist
from torch import Tensor

from headway.averaging import checkpoint
from headway.averaging.statistics import Statistics
from headway.collectives import Executor, Members
from headway.exchange import (
    BUFFERS_EVERY,
    Averager,
    BufferAverager,
    CostModel,
    Engine,
    ExchangeRecord,
    ExecutorChannel,
    History,
    Plan,
)
from headway.kernels import Momentum
from headway.kernels import warm_up as compile_kernels
from headway.network import NetworkView
from headway.tuner import Adaptive, Decision, DecisionLog, Fixed, Pace, make_loop


@contextmanager
def _released_on_failure(executor: Executor) -> Iterator[None]:
    """Let no rank wait for this one, and no thread live on, if what follows fails."""
    try:
        yield
    except BaseException:
        executor.abandon()
        executor.close(deadline=time.monotonic())
        raise


class Averaging:
    """Averages on an engine thread of its own, as a configuration says, and counts what that takes.

    Every rank of the group makes one.

    Args:
        config: `Adaptive` or `Fixed`.
        group: The ranks that take part; all by default.
        same_everywhere: What ranks must have in common, besides the configuration and the buffers; compared by how it
            is printed.
        find_buffers: Returns the floating-point buffers to average, by name.
        buffers_every: Steps between their averages.
        momentum: The momentum that an optimizer has handed over, if one has.
        may_skip_parameters: Whether a step may leave parameters unused.
        paces: How often ranks may talk, with local steps: see `headway.tuner.Pace`.
        before: What averaged the same run before ranks were lost: its totals, records and decisions are carried on.
        costs: What is known of network and machine, which is not measured then; on all ranks or none.
    """

    def __init__(
        self,
        config: Fixed | Adaptive,
        *,
        group: dist.ProcessGroup | Members | None = None,
        same_everywhere: Sequence[object] = (),
        find_buffers: Callable[[], Mapping[str, Tensor]] = dict,
        buffers_every: int = BUFFERS_EVERY,
        momentum: Momentum | None = None,
        may_skip_parameters: bool = False,
        paces: Sequence[Pace] | None = None,
        before: Averaging | None = None,
        costs: CostModel | None = None,
    ) -> None:
        self.config = config
        self.executor = Executor(group, timeout_s=config.timeout_s, debug=config.debug)
        with _released_on_failure(self.executor):
            if isinstance(config, Adaptive) or config.plan.keeps_memory:
                # Not in the middle of a step that other ranks wait for, nor before this one can say that it is alive.
                compile_kernels()
            log, trouble = self._open_log()
            buffers = [(name, buffer.numel(), str(buffer.dtype)) for name, buffer in find_buffers().items()]
            self._check_agreement(trouble, [buffers, may_skip_parameters, momentum, paces, *same_everywhere])
            self._history: History = History() if before is None else before._history
            self._decisions_before = () if before is None else before.decisions
            self.loop = make_loop(
                config,
                self.executor,
                group,
                log,
                is_corrected=momentum is not None,
                paces=paces,
                costs=costs,
            )
            channel = ExecutorChannel(self.executor, self.loop.current.costs)
            self.buffers = BufferAverager(find_buffers, channel, buffers_every)
        self.averager = Averager(
            channel,
            self.loop,
            self._history,
            config.seed,
            buffers=self.buffers,
            may_skip_parameters=may_skip_parameters,
            momentum=momentum,
        )
        self.engine = Engine()

    @property
    def num_ranks(self) -> int:
        """The number of ranks."""
        return self.executor.num_ranks

    @property
    def plan(self) -> Plan:
        """The plan in force."""
        return self.averager.plan

    @property
    def residual(self) -> Tensor | None:
        """What this rank has kept back; None if nothing."""
        return None if self.averager.memories is None else self.averager.memories.residual

    @property
    def decisions(self) -> tuple[Decision, ...]:
        """The latest decisions about the plan, oldest first."""
        return (*self._decisions_before, *self.loop.decisions)

    @property
    def records(self) -> tuple[ExchangeRecord, ...]:
        """The latest exchanges of this rank, oldest first."""
        return self._history.records

    @property
    def network(self) -> NetworkView | None:
        """The network as the traffic shows it; None if it is not followed, or there is only one rank."""
        return self.loop.view if self.loop.is_following else None

    def statistics(self) -> Statistics:
        """Return the totals of all exchanges so far."""
        return Statistics(step=self.averager.step, exchanges=self._history.totals)

    def average_buffers(self) -> None:
        """Average the buffers now; between steps, on every rank."""
        self.engine.drain()
        if self.num_ranks > 1:
            self.buffers.average(self.averager.channel)

    def state_dict(self) -> dict[str, Any]:
        """Return residuals, thresholds, step and all that decides what comes next; between steps, on every rank."""
        self.engine.drain()
        return checkpoint.save(self.averager, self.loop, self.buffers)

    def load_state_dict(self, state: Mapping[str, Any], parameters: Mapping[str, int], *, strict: bool) -> None:
        """Continue from a state; one of another number of ranks or another model is rejected.

        Args:
            state: From `state_dict` of the same rank.
            parameters: The sizes of the model's parameters by name, if they are known.
            strict: If False, a state that does not fit gives a warning, and its residuals are dropped.
        """
        self.engine.drain()
        self.loop.finish_round()
        given_link = self.config.link if isinstance(self.config, Fixed) else None
        checkpoint.load(self.averager, self.loop, self.buffers, state, parameters, strict=strict, link=given_link)

    def cut_off(self) -> None:
        """Let no other rank wait for this one: it has failed."""
        self.executor.abandon()
        self.loop.abandon()

    def close(self, deadline: float) -> None:
        """Close control rounds and connections; wait for other ranks until the deadline (`time.monotonic`)."""
        self.engine.close()
        self.loop.close(deadline)
        self.executor.close(deadline=deadline)

    def _open_log(self) -> tuple[DecisionLog | None, str]:
        """Return the decision log of rank 0, and what is wrong with its file, if anything is."""
        if self.executor.rank != 0:
            return None, ""
        try:
            return DecisionLog(getattr(self.config, "journal", None)), ""
        except OSError as error:
            return None, str(error)

    def _check_agreement(self, trouble: str, same_everywhere: Sequence[object]) -> None:
        """Find out now whether ranks were configured differently, and not by a deadline in the middle of training."""
        own = torch.tensor([bool(trouble), crc32(repr((self.config.fingerprint, same_everywhere)).encode())])
        rows = self.executor.all_gather(own, "native").tolist()
        troubles = [has_trouble for has_trouble, *_ in rows]
        differing = [rank for rank, (_, theirs) in enumerate(rows) if theirs != rows[0][1]]
        if differing or any(troubles):
            self.executor.close()
        if differing:
            raise ValueError(f"ranks {differing} have another configuration than rank 0: give the same to all")
        if any(troubles):
            raise ValueError(f"rank 0 cannot write its journal: {trouble or 'its own error says why'}")
