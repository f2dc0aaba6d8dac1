"""All ranks in one process: the steps of `wrap` to the bit, and the convergence that theory promises."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.distributed as dist
from benchmarks.gossip_rate import NUMEL, descend, distances, logistic, quadratic, steps_to
from sklearn.datasets import load_digits
from torch import Tensor, nn

from headway import gossip
from headway.compress import StochasticQuantizer
from headway.gossip import InProcessGossip
from tests.gossip.problem import Quadratic, flat

ALGORITHMS = ("dpsgd", "naive", "dcd", "ecd", "choco")
RATE = 1 / 16


@pytest.mark.pool
@pytest.mark.parametrize(("algorithm", "local_steps"), [*((name, 1) for name in ALGORITHMS), ("dcd", 3), ("choco", 2)])
def test_wrap_takes_the_same_steps_to_the_bit(pool, algorithm, local_steps):
    assert all(pool.run(compare_with_wrap, algorithm, local_steps, num_ranks=4))


def compare_with_wrap(algorithm: str, local_steps: int) -> bool:
    """With a learning rate that is a power of two, so that the update itself is not rounded."""
    model = Quadratic(dist.get_rank())
    optimizer = gossip.wrap(
        model,
        torch.optim.SGD(model.parameters(), lr=RATE),
        algorithm=algorithm,
        local_steps=local_steps,
        memory="lean",
        seed=3,
        timeout_s=20,
    )
    ranks = InProcessGossip(flat(model), dist.get_world_size(), algorithm, local_steps=local_steps, seed=3)
    for _ in range(20):
        optimizer.zero_grad()
        model().backward()
        update = -RATE * torch.cat([parameter.grad for parameter in model.parameters()])
        updates = [torch.empty_like(update) for _ in range(dist.get_world_size())]
        dist.all_gather(updates, update)
        optimizer.step()
        ranks.step(torch.stack(updates))
    same = torch.equal(flat(model), ranks.models[dist.get_rank()])
    optimizer.close()
    return same


@pytest.mark.parametrize(("problem", "rate", "num_steps"), [(quadratic, 0.2, 400), (logistic, 1.0, 800)])
def test_naive_compression_has_a_floor_that_dcd_and_ecd_do_not_have(problem, rate, num_steps):
    """How far models are from those of a run without compression, in its second eighth and in its second half."""
    compressors = {
        "naive": StochasticQuantizer(bits=8),
        "dcd": StochasticQuantizer(bits=8),
        "ecd": StochasticQuantizer(bits=8, step=0.05),
    }
    off = distances(problem(8)[0], compressors, rate, num_steps)
    early = {name: np.mean(off[name][num_steps // 8 : num_steps // 4]) for name in off}
    late = {name: np.mean(off[name][num_steps // 2 :]) for name in off}
    assert late["naive"] > 0.8 * early["naive"]
    assert late["dcd"] < 0.1 * late["naive"]
    assert late["ecd"] < 0.6 * early["ecd"]  # as 1/sqrt(t)
    assert late["ecd"] < 0.6 * late["naive"]


def test_dcd_with_one_bit_diverges_on_a_ring_where_choco_does_not():
    norms = {
        algorithm: descend(
            InProcessGossip(torch.zeros(NUMEL), 8, algorithm, "ring", StochasticQuantizer(bits=1)),
            *quadratic(8),
            0.1,
            300,
        )
        for algorithm in ("dcd", "choco")
    }
    assert norms["dcd"][-1] > 100 * norms["dcd"][0] or not np.isfinite(norms["dcd"][-1])
    assert norms["choco"][-50:].mean() < 0.2 * norms["choco"][0]


def test_four_times_the_workers_need_a_quarter_of_the_steps():
    """The rate 1/sqrt(NT): each number of workers has the learning rate that is best for it."""
    steps = {}
    for num_ranks, rate in ((4, 0.04), (16, 0.16)):
        ranks = InProcessGossip(torch.zeros(NUMEL), num_ranks, "dcd", "ring", StochasticQuantizer(bits=8))
        norms = descend(ranks, *logistic(num_ranks, batch=1), rate, 800)
        assert norms[0] > 0.3
        steps[num_ranks] = steps_to(norms, 0.07)
    assert steps[4] < 800
    assert steps[16] <= 0.4 * steps[4]


def test_digits_are_learned_as_well_as_by_all_reduce():
    """Eight workers on a ring, each with other batches; the mean model within 1 point of averaged gradients."""
    reached = {
        "all-reduce": accuracy(None, None),
        "dcd": accuracy("dcd", StochasticQuantizer(bits=8)),
        "choco": accuracy("choco", StochasticQuantizer(bits=4)),
    }
    assert reached["all-reduce"] > 0.93
    for algorithm in ("dcd", "choco"):
        assert reached[algorithm] >= reached["all-reduce"] - 0.01, reached


def accuracy(algorithm: str | None, compressor: StochasticQuantizer | None) -> float:
    """Train a small network, and return the share of 450 test digits that it gets right."""
    digits = load_digits()
    order = torch.randperm(len(digits.target), generator=torch.Generator().manual_seed(0))
    images, labels = torch.tensor(digits.data, dtype=torch.float32)[order] / 16, torch.tensor(digits.target)[order]
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    draws = torch.Generator().manual_seed(1)

    def gradient_at(flat: Tensor) -> Tensor:
        nn.utils.vector_to_parameters(flat.clone(), model.parameters())
        picked = torch.randint(450, len(labels), (16,), generator=draws)
        loss = nn.functional.cross_entropy(model(images[picked]), labels[picked])
        return torch.cat([gradient.flatten() for gradient in torch.autograd.grad(loss, list(model.parameters()))])

    mean = nn.utils.parameters_to_vector(model.parameters()).detach()
    ranks = None if algorithm is None else InProcessGossip(mean, 8, algorithm, "ring", compressor)
    for _ in range(250):
        if ranks is None:
            mean = mean - 0.2 * torch.stack([gradient_at(mean) for _ in range(8)]).mean(dim=0)
        else:
            ranks.step(-0.2 * torch.stack([gradient_at(model) for model in ranks.models]))
            mean = ranks.models.mean(dim=0)
    nn.utils.vector_to_parameters(mean, model.parameters())
    with torch.no_grad():
        return float((model(images[:450]).argmax(dim=1) == labels[:450]).float().mean())
