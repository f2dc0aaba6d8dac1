"""A test of every exchange on this machine: the averaged gradients of two workers must be equal and correct."""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import asdict, dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from headway._plugins import load_plugins
from headway.ddp import Fixed, attach
from headway.exchange import EXCHANGES
from headway.lab import run_on_loopback
from headway.network import Link

NUM_WORKERS = 2
TIMEOUT_S = 60.0
_NUM_STEPS = 3
"""The first ones are dense, until DDP has rebuilt its buckets."""
_WIDTH = 64
_ROUNDING = 1e-5


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """Result of the test of one exchange."""

    exchange: str
    error: float
    """The largest deviation from the true average, over the largest entry."""
    are_equal: bool
    """Whether both workers had bitwise equal results."""
    was_used: bool
    """Whether this exchange ran, rather than the dense one in its place."""
    seconds: float

    @property
    def is_good(self) -> bool:
        """Whether the exchange works."""
        most = max(EXCHANGES[self.exchange].description.max_error, _ROUNDING)
        return self.was_used and self.are_equal and self.error <= most


def self_test(timeout_s: float = TIMEOUT_S) -> list[Verdict]:
    """Test all exchanges on two workers of this machine.

    Raises:
        RuntimeError: A worker failed; the message has its last line.
        TimeoutError: The test took too long.
    """
    lines: list[str] = []
    outcome = run_on_loopback(
        NUM_WORKERS,
        [sys.executable, "-m", "headway.train.self_test"],
        output=lambda rank, line: lines.append(line) if rank == 0 else None,
        timeout_s=timeout_s,
    )
    if outcome.first_failed is not None:
        last = outcome.tails[outcome.first_failed][-1:] or ("it printed nothing",)
        raise RuntimeError(f"worker {outcome.first_failed} failed: {last[0]}")
    return [Verdict(**json.loads(line)) for line in lines if line.startswith("{")]


def _try_exchange(exchange: str) -> Verdict:
    """Take a few steps with ratio 1; every rank calls it."""
    start = time.perf_counter()
    torch.manual_seed(0)
    ddp = DistributedDataParallel(nn.Linear(_WIDTH, _WIDTH))
    link = Link(latency_s=1e-4, bandwidth_bps=1e9)
    handle = attach(ddp, Fixed(exchange=exchange, ratio=1.0, link=link, timeout_s=30.0))
    error = 0.0
    for step in range(_NUM_STEPS):
        torch.manual_seed(1000 * step + dist.get_rank())
        inputs = torch.randn(8, _WIDTH)
        true = _true_average(ddp.module, inputs)
        ddp.zero_grad()
        ddp(inputs).square().mean().backward()
        found = _gradient(ddp.module)
        error = max(error, float((found - true).abs().max() / true.abs().max()))
    was_used = handle.records[-1].exchange == exchange
    copies = [torch.empty_like(found) for _ in range(NUM_WORKERS)]
    dist.all_gather(copies, found)
    handle.close()
    return Verdict(
        exchange=exchange,
        error=error,
        are_equal=all(torch.equal(copy, copies[0]) for copy in copies),
        was_used=was_used,
        seconds=time.perf_counter() - start,
    )


def _true_average(model: nn.Module, inputs: Tensor) -> Tensor:
    model.zero_grad()
    model(inputs).square().mean().backward()
    total = _gradient(model)
    dist.all_reduce(total)
    return total / NUM_WORKERS


def _gradient(model: nn.Module) -> Tensor:
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]).clone()


def main() -> None:
    """Run as one of the workers; rank 0 prints a line of JSON for each exchange."""
    torch.set_num_threads(1)
    load_plugins()
    dist.init_process_group("gloo")
    for exchange in EXCHANGES:
        verdict = _try_exchange(exchange)
        if dist.get_rank() == 0:
            print(json.dumps(asdict(verdict)), flush=True)
    dist.barrier()
    os._exit(0)


if __name__ == "__main__":
    main()
