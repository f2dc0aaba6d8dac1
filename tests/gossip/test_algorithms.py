"""Every algorithm against its equations in numpy, step by step; and what must hold for all of them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from headway.compress import Contraction, RandomK, Sign, StochasticQuantizer, TopK
from headway.gossip import topology_of
from headway.gossip.settings import automatic_consensus_step
from tests.gossip import reference
from tests.gossip.problem import Recording, descend, quadratics

pytestmark = pytest.mark.pool

LR = 0.05
NUM_STEPS = 60
NUM_RANKS = 4
COMPRESSED = {
    "naive 8 bits": ("naive", StochasticQuantizer(bits=8)),
    "dcd 8 bits": ("dcd", StochasticQuantizer(bits=8)),
    "dcd 4 bits": ("dcd", StochasticQuantizer(bits=4)),
    "dcd random half": ("dcd", RandomK(0.5)),
    "ecd fixed step": ("ecd", StochasticQuantizer(bits=8, step=0.1)),
    "choco 4 bits": ("choco", Contraction(StochasticQuantizer(bits=4))),
    "choco 1 bit": ("choco", Contraction(StochasticQuantizer(bits=1))),
    "choco top-k": ("choco", TopK(0.1)),
    "choco sign": ("choco", Sign()),
}


def models(ranks: list[dict]) -> np.ndarray:
    """Return the models after each step: step, rank, entry."""
    return torch.stack([rank["path"] for rank in ranks], dim=1).double().numpy()


def expected(
    algorithm: str, topology: str, num_ranks: int, noise: np.ndarray, consensus_step: float = 1.0
) -> np.ndarray:
    start, move = quadratics(num_ranks, LR)
    weights = topology_of(topology, num_ranks).weights
    return np.stack(reference.run(algorithm, weights, start, move, noise, consensus_step)[1])


@pytest.mark.parametrize(
    ("name", "memory"),
    [
        *((name, "resilient") for name in COMPRESSED),
        *((name, "lean") for name in ("dcd 8 bits", "ecd fixed step", "choco 4 bits")),
    ],
)
def test_every_algorithm_does_what_its_equations_say(pool, name, memory):
    algorithm, compressor = COMPRESSED[name]
    recording = Recording(compressor, is_unbiased=compressor.is_unbiased)
    options = {"algorithm": algorithm, "topology": "ring", "compressor": recording, "memory": memory}
    ranks = pool.run(quietly, options, NUM_STEPS, LR, num_ranks=NUM_RANKS)
    noise = torch.stack([rank["noise"] for rank in ranks], dim=1).numpy()
    step = automatic_consensus_step(compressor) if algorithm == "choco" else 1.0
    found, wanted = models(ranks), expected(algorithm, "ring", NUM_RANKS, noise, step)
    assert found.shape == (NUM_STEPS, NUM_RANKS, 40)
    assert np.abs(noise).max() > 1e-4  # something was lost on the way
    assert np.abs(found - wanted).max() < 1e-5 * max(1.0, np.abs(wanted).max())


def quietly(options: dict, num_steps: int, lr: float) -> dict:
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return descend(options, num_steps, lr)


@pytest.mark.parametrize(
    ("topology", "num_ranks"),
    [("ring", 1), ("ring", 2), ("ring", 5), ("torus", 4), ("complete", 3), ("star", 4)],
)
def test_without_compression_dcd_ecd_and_dpsgd_are_the_same(pool, topology, num_ranks):
    no_noise = np.zeros((20, num_ranks, 40))
    wanted = expected("dpsgd", topology, num_ranks, no_noise)
    for algorithm in ("dpsgd", "dcd", "ecd"):
        options = {"algorithm": algorithm, "topology": topology, "compressor": None}
        found = models(pool.run(descend, options, len(no_noise), LR, num_ranks=num_ranks))
        assert np.abs(found - wanted).max() < 1e-5 * max(1.0, np.abs(wanted).max())


@pytest.mark.parametrize("algorithm", ["dpsgd", "choco"])
def test_mixing_preserves_the_mean(pool, algorithm):
    """Without a local update, models that differ come together at their mean."""
    ranks = pool.run(mix_only, {"algorithm": algorithm, "topology": "ring"}, 150, num_ranks=4)
    start = torch.stack([rank[0] for rank in ranks]).double()
    end = torch.stack([rank[1] for rank in ranks]).double()
    torch.testing.assert_close(end.mean(dim=0), start.mean(dim=0), rtol=0, atol=1e-5)
    assert float((start - start.mean(dim=0)).norm()) > 1
    assert float((end - end.mean(dim=0)).norm()) < 0.02


def mix_only(options: dict, num_steps: int) -> tuple:
    import torch.distributed as dist

    from headway import gossip
    from tests.gossip.problem import Quadratic, flat

    model = Quadratic(0)
    optimizer = gossip.wrap(model, torch.optim.SGD(model.parameters(), lr=1.0), **options)
    for step in range(num_steps):
        optimizer.zero_grad()
        ((step == 0) * model.first.sum() * dist.get_rank()).backward()  # the first step sets them apart
        optimizer.step()
        if step == 0:
            start = flat(model)
    end = flat(model)
    optimizer.close()
    return start, end


def test_messages_have_the_size_that_bits_say(pool):
    for bits in (8, 4, 2, 1):
        options = {"algorithm": "choco", "compressor": StochasticQuantizer(bits=bits), "buffer_interval": 0}
        statistics = pool.run(descend, options, 3, LR, num_ranks=3)[0]["statistics"]
        message = 8 + 4 + 4 + 40 * bits // 8  # header, factor, the scale of the block, codes
        assert statistics.wire_bytes == 3 * 2 * (message + (-message) % 4)
        assert statistics.step == 3


@pytest.mark.parametrize(
    ("make", "options"),
    [
        (torch.optim.SGD, {"momentum": 0.9}),
        (torch.optim.SGD, {"momentum": 0.9, "nesterov": True, "weight_decay": 0.01}),
        (torch.optim.Adam, {}),
        (torch.optim.AdamW, {"weight_decay": 0.1}),
    ],
)
def test_any_optimizer_makes_the_local_update(pool, make, options):
    """On a complete graph without compression: x <- mean of all x + what the optimizer does at x."""
    ranks = pool.run(with_optimizer, make, options, num_ranks=3)
    for found, wanted in ranks:
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)


def with_optimizer(make: type, options: dict) -> tuple:
    import torch.distributed as dist

    from headway import gossip
    from tests.gossip.problem import Quadratic, flat

    model, twin = Quadratic(dist.get_rank()), Quadratic(dist.get_rank())
    twin.load_state_dict(Quadratic(0).state_dict())
    optimizer = gossip.wrap(model, make(model.parameters(), lr=0.01, **options), algorithm="dpsgd", topology="complete")
    inner = make(twin.parameters(), lr=0.01, **options)
    for _ in range(20):
        gradients = torch.autograd.grad(model(), list(model.parameters()))
        for parameter, other, gradient in zip(model.parameters(), twin.parameters(), gradients, strict=True):
            parameter.grad, other.grad = gradient.clone(), gradient.clone()
        optimizer.step()
        before = flat(twin)
        inner.step()
        update = flat(twin) - before
        dist.all_reduce(before)
        torch.nn.utils.vector_to_parameters(before / dist.get_world_size() + update, twin.parameters())
    return flat(model), flat(twin)
