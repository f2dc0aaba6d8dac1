"""AdamW inside local steps, on the transformer and text of `headway.train`."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from headway import Fixed, Link, local
from headway.train.models import build_model
from headway.train.optimizers import make_optimizer
from headway.train.samples import Samples, Task
from headway.train.workloads import WORKLOADS
from tests.local.loop import flat
from tests.ranks import same_on_all

pytestmark = pytest.mark.pool
TEXT = WORKLOADS["text"]
BATCH, NUM_ROUNDS, LOCAL_STEPS, NUM_TESTED = 8, 10, 4, 64
NUM_STEPS = NUM_ROUNDS * LOCAL_STEPS + 1  # one more, by which the last average has been applied
SPARSE = Fixed(
    exchange="allgather_topk",
    ratio=0.05,
    values="sign",
    link=Link(latency_s=1e-4, bandwidth_bps=1e9),
    timeout_s=20.0,
)


@dataclass(frozen=True)
class Learned:
    """What a rank has after training with local steps, and after plain DDP on the same samples."""

    loss_before: float
    loss: float
    ddp_loss: float
    num_exchanges: int
    compression: float
    is_common_same: bool
    are_moments_own: bool
    are_moments_different: bool


def test_adamw_learns_nearly_as_much_as_with_ddp_and_keeps_its_moments(pool):
    for learned in pool.run(learn, num_ranks=2):
        assert learned.loss_before - learned.loss > 0.93 * (learned.loss_before - learned.ddp_loss) > 2.0
        assert learned.num_exchanges == NUM_ROUNDS
        assert learned.compression > 20
        assert learned.is_common_same
        assert learned.are_moments_own
        assert learned.are_moments_different


def learn() -> Learned:
    torch.manual_seed(0)
    task = TEXT.load(Path(argparse.__file__))  # some text: all docstrings, the default, take seconds to load
    model, twin = build_model(TEXT.model, task), build_model(TEXT.model, task)
    twin.load_state_dict(model.state_dict())
    loss_before = loss_on(model, task.test)
    ddp = nn.parallel.DistributedDataParallel(twin)
    adamw = make_optimizer(TEXT.optimizer, twin, TEXT.lr, weight_decay=0.01)
    for batch in batches(task):
        take_step(ddp, adamw, *batch)
    inner = make_optimizer(TEXT.optimizer, model, TEXT.lr, weight_decay=0.01)
    with local.wrap(model, inner, LOCAL_STEPS, config=SPARSE, overlap=1) as optimizer:
        follow = [moments_follow(model, optimizer, *batch) for batch in batches(task)]
        sent, whole = (sum(getattr(each, n) for each in optimizer.records) for n in ("wire_bytes", "dense_bytes"))
        num_exchanges = len(optimizer.records)
        with optimizer.averaged():
            common, loss = flat(model), loss_on(model, task.test)
    moments = torch.cat([inner.state[parameter]["exp_avg"].flatten() for parameter in model.parameters()])
    return Learned(
        loss_before=loss_before,
        loss=loss,
        ddp_loss=loss_on(twin, task.test),
        num_exchanges=num_exchanges,
        compression=whole / sent,
        is_common_same=same_on_all(common),
        are_moments_own=all(follow),
        are_moments_different=not same_on_all(moments),
    )


def batches(task: Task) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(dist.get_rank())
    return [task.train.batch(BATCH, generator) for _ in range(NUM_STEPS)]


def take_step(model: nn.Module, optimizer: torch.optim.Optimizer, inputs: Tensor, targets: Tensor) -> None:
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(inputs).flatten(0, 1), targets.flatten()).backward()
    optimizer.step()


def moments_follow(model: nn.Module, optimizer: local.LocalOptimizer, inputs: Tensor, targets: Tensor) -> bool:
    """Take a step; return whether both moments of a layer have moved by this rank's own gradient alone."""
    weight = model.head.weight
    state = optimizer.inner.state[weight]
    before = [state[name].clone() if state else torch.zeros_like(weight) for name in ("exp_avg", "exp_avg_sq")]
    take_step(model, optimizer, inputs, targets)
    first, second = optimizer.inner.param_groups[0]["betas"]
    mean = first * before[0] + (1 - first) * weight.grad
    square = second * before[1] + (1 - second) * weight.grad**2
    state = optimizer.inner.state[weight]
    return torch.allclose(state["exp_avg"], mean) and torch.allclose(state["exp_avg_sq"], square)


@torch.no_grad()
def loss_on(model: nn.Module, test: Samples) -> float:
    inputs, targets = test.inputs[:NUM_TESTED], test.targets[:NUM_TESTED]
    return nn.functional.cross_entropy(model(inputs).flatten(0, 1), targets.flatten()).item()
