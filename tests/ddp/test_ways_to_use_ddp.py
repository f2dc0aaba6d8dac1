"""What people do with DDP: unused parameters, static graphs, accumulation, several models, half precision, scalers.

No one file of the package is tested here, but the hook as a whole. Gradients are compared with those that the test
computes without DDP: see `Ledger`.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.join import Join
from torch.utils.checkpoint import checkpoint

import headway
from tests.ddp.training import (
    Ledger,
    batch,
    bits,
    check_averages,
    fixed,
    loss_of,
    mlp,
    parameters_of,
    step_once,
    train,
    wrap,
)

pytestmark = pytest.mark.pool

TOPK = {"exchange": "allgather_topk", "ratio": 0.1}
STAR = {"exchange": "star_topk", "ratio": 0.1}
RANDOM = {"exchange": "randomk", "ratio": 0.1}
DENSE = {"exchange": "dense"}


class Forking(nn.Module):
    """One of two branches takes part, another one on the next step and on the next rank."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.branches = nn.ModuleList([nn.Linear(20, 40), nn.Linear(20, 40)])
        self.head = nn.Linear(40, 5)
        self.turn = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.turn += 1
        return self.head(self.branches[(self.turn + dist.get_rank()) % 2](x))


@pytest.mark.parametrize("options", [TOPK, STAR, RANDOM, DENSE])
@pytest.mark.parametrize("fusion", ["bucket", "step"])
def test_parameters_may_be_unused(pool, options, fusion):
    check_averages(pool.run(train_forking, options | {"fusion": fusion}, num_ranks=2), options["exchange"])


def train_forking(options: dict) -> dict:
    return train(options, make=Forking, ddp_options={"find_unused_parameters": True})


@pytest.mark.parametrize("ddp_options", [{"static_graph": True}, {"gradient_as_bucket_view": True}])
@pytest.mark.parametrize("fusion", ["bucket", "step", "auto"])
def test_options_of_ddp(pool, ddp_options, fusion):
    results = pool.run(train_with_options, TOPK | {"fusion": fusion}, ddp_options, num_ranks=3)
    check_averages(results, "allgather_topk")
    assert results[0]["losses"][-1] < 0.9 * results[0]["losses"][0]
    if fusion == "bucket":
        assert len({record.bucket for record in results[0]["history"][-6:]}) > 1


def train_with_options(options: dict, ddp_options: dict) -> dict:
    return train(options, ddp_options=ddp_options)


def accumulate(options: dict) -> dict:
    """Three batches a step, of which DDP averages the sum."""
    ddp = wrap(mlp())
    handle = headway.attach(ddp, fixed(**options))
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05)
    ledger, lost = Ledger(ddp, handle), 0.0
    for step in range(8):
        numbers = range(3 * step, 3 * step + 3)
        for number in numbers:
            ledger.give(lambda model, number=number: loss_of(model, number))
        with ddp.no_sync():
            for number in numbers[:-1]:
                loss_of(ddp, number).backward()
        loss_of(ddp, numbers[-1]).backward()
        ledger.apply()
        lost = max(lost, ledger.lost())
        optimizer.step()
        optimizer.zero_grad()
    seen = {"parameters": parameters_of(ddp), "step": handle.statistics().step, "history": handle.records, "lost": lost}
    handle.close()
    return seen


@pytest.mark.parametrize("options", [TOPK, STAR, DENSE])
def test_gradients_may_be_accumulated(pool, options):
    results = pool.run(accumulate, options, num_ranks=2)
    check_averages(results, options["exchange"])
    assert results[0]["step"] == 8


def two_models() -> list[dict]:
    """Both train in one backward."""
    models = [wrap(mlp()), wrap(mlp(width=32))]
    handles = [headway.attach(model, fixed(**options)) for model, options in zip(models, (TOPK, STAR), strict=True)]
    ledgers = [Ledger(model, handle) for model, handle in zip(models, handles, strict=True)]
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.05) for model in models]
    for step in range(10):
        for ledger in ledgers:
            ledger.give(lambda model, step=step: loss_of(model, step))
        sum(loss_of(model, step) for model in models).backward()
        for ledger, optimizer in zip(ledgers, optimizers, strict=True):
            ledger.apply()
            optimizer.step()
            optimizer.zero_grad()
    seen = [
        {"parameters": parameters_of(model), "lost": ledger.lost(), "history": handle.records}
        for model, ledger, handle in zip(models, ledgers, handles, strict=True)
    ]
    for handle in handles:
        handle.close()
    return seen


def test_several_models_in_one_process(pool):
    first, second = zip(*pool.run(two_models, num_ranks=2), strict=True)
    check_averages(first, "allgather_topk")
    check_averages(second, "star_topk")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("options", [TOPK, STAR, DENSE])
def test_parameters_of_other_types(pool, dtype, options):
    check_averages(pool.run(train_in, dtype, options, num_ranks=2), options["exchange"])


def train_in(dtype: torch.dtype, options: dict) -> dict:
    return train(options, make=lambda: mlp().to(dtype), num_steps=8)


def scale(options: dict, bad_rank: int) -> dict:
    """Train with a scaler; the fifth batch of one rank is not finite."""
    ddp = wrap(mlp())
    handle = headway.attach(ddp, fixed(**options))
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=1000)
    ledger = Ledger(ddp, handle)
    scales, moved, lost = [], [], []
    for step in range(8):
        before = parameters_of(ddp)
        optimizer.zero_grad()
        loss = scaled_loss(scaler, step, is_bad=step == 4 and dist.get_rank() == bad_rank)
        ledger.give(loss)
        loss(ddp).backward()
        ledger.apply()
        if step == 4:
            ledger.restart()
        lost.append(ledger.lost())
        scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
        moved.append(not torch.equal(before, parameters_of(ddp)))
    residual = handle.state_dict()["residual"]
    seen = {"scales": scales, "moved": moved, "parameters": parameters_of(ddp), "residual": residual}
    seen |= {"lost": max(lost), "history": handle.records}
    handle.close()
    return seen


def scaled_loss(scaler: torch.amp.GradScaler, step: int, *, is_bad: bool) -> Callable[[nn.Module], torch.Tensor]:
    def loss(model: nn.Module) -> torch.Tensor:
        inputs, targets = batch(dist.get_rank(), step)
        if is_bad:
            inputs[0, 0] = torch.inf
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return scaler.scale(nn.functional.cross_entropy(model(inputs).float(), targets))

    return loss


@pytest.mark.parametrize("bad_rank", [0, 1])
@pytest.mark.parametrize("options", [TOPK, STAR, {"exchange": "quantized"}, DENSE])
def test_autocast_and_a_scaler_that_skips_a_step(pool, options, bad_rank):
    results = pool.run(scale, options, bad_rank, num_ranks=2)
    check_averages(results, options["exchange"])
    for result in results:
        assert result["scales"] == [1024.0] * 4 + [512.0] * 4
        assert result["moved"] == [True] * 4 + [False] + [True] * 3
        assert result["residual"] is None or result["residual"].isfinite().all()


def deep() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(*[layer for _ in range(13) for layer in (nn.Linear(20, 20), nn.ReLU())], nn.Linear(20, 5))


def many_small_buckets(configs: list[dict]) -> list[dict]:
    return [train(config, make=deep, num_steps=6) for config in configs]


@pytest.mark.parametrize("num_ranks", [2, 4])
def test_many_small_buckets_never_hang(pool, num_ranks):
    """Where a hook that waits within a future's callback hangs on Gloo: eight times over."""
    options = [TOPK, STAR, {"exchange": "var_topk", "ratio": 0.01}, DENSE] * 2
    ranks = pool.run(many_small_buckets, [each | {"fusion": "bucket"} for each in options], num_ranks=num_ranks)
    for results, config in zip(zip(*ranks, strict=True), options, strict=True):
        check_averages(results, config["exchange"])
        assert len({record.bucket for record in results[0]["history"]}) >= 10


class Checkpointed(nn.Module):
    """Recomputes its activations in backward, within a backward of its own."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.first, self.second = nn.Linear(20, 64), nn.Linear(64, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return checkpoint(lambda y: self.second(torch.relu(self.first(y))), x.requires_grad_(), use_reentrant=True)


def train_checkpointed(options: dict) -> dict:
    return train(options, make=Checkpointed)


@pytest.mark.parametrize("fusion", ["bucket", "step"])
def test_activations_may_be_recomputed(pool, fusion):
    check_averages(pool.run(train_checkpointed, TOPK | {"fusion": fusion}, num_ranks=2), "allgather_topk")


def uneven(options: dict) -> dict:
    """Rank 1 has two batches more; while it goes on alone, DDP counts 0 for rank 0."""
    ddp = wrap(mlp())
    handle = headway.attach(ddp, fixed(**options))
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.01)
    ledger = Ledger(ddp, handle)
    with Join([ddp]):
        for step in range(6 + 2 * dist.get_rank()):
            ledger.give(lambda model, step=step: loss_of(model, step))
            step_once(ddp, optimizer, step)
            ledger.apply()
    lost = ledger.lost()
    seen = {"parameters": parameters_of(ddp), "step": handle.statistics().step, "history": handle.records, "lost": lost}
    handle.close()
    return seen


@pytest.mark.parametrize("options", [TOPK, STAR])
def test_ranks_may_have_uneven_numbers_of_batches(pool, options):
    first, second = pool.run(uneven, options | {"fusion": "bucket"}, num_ranks=2)
    assert (first["step"], second["step"]) == (8, 8)
    check_averages([second], options["exchange"])  # rank 0 has not seen the averages of the last two steps
    assert bits(first["parameters"]) == bits(second["parameters"])
