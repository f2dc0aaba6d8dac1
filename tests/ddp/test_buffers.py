"""Buffers of a model, such as the statistics of batch norm, averaged along with its gradients."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

import headway
from headway.exchange import BUFFERS_EVERY
from tests.ddp.training import LINK, bits, fixed, loss_of, step_once, wrap

pytestmark = pytest.mark.pool

NUM_STEPS = 2 * BUFFERS_EVERY
FAR = headway.Link(latency_s=0.05, bandwidth_bps=1e6)
"""On such a link it is cheapest to send buffers along with gradients."""


def with_batch_norm(width: int = 32) -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(20, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Linear(width, 5))


def statistics_of(model: nn.Module) -> torch.Tensor:
    return torch.cat([buffer.flatten() for buffer in model.buffers() if buffer.is_floating_point()])


def gathered(tensor: torch.Tensor) -> torch.Tensor:
    rows = [torch.empty_like(tensor) for _ in range(dist.get_world_size())]
    dist.all_gather(rows, tensor)
    return torch.stack(rows)


def count_broadcasts(ddp: nn.parallel.DistributedDataParallel) -> list[int]:
    calls: list[int] = []
    sync, ddp._sync_buffers = ddp._sync_buffers, lambda: (calls.append(1), sync())
    return calls


def train(config: dict[str, Any], buffers: str = "average", spoil_rank: int | None = None) -> dict[str, Any]:
    """Train; return the statistics of all ranks just before and after they were averaged, as this rank knows them."""
    ddp = wrap(with_batch_norm())
    handle = headway.attach(ddp, fixed(**config), buffers=buffers)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05)
    broadcasts = count_broadcasts(ddp)
    before, averaged = [], []
    for step in range(NUM_STEPS):
        if step == NUM_STEPS - 1:
            own = statistics_after_forward(ddp, optimizer, step, spoil=dist.get_rank() == spoil_rank)
            before, averaged = gathered(own), gathered(statistics_of(ddp))
        else:
            step_once(ddp, optimizer, step)
    seen = {"before": before, "averaged": averaged, "num_broadcasts": len(broadcasts), "records": handle.records}
    handle.close()
    return seen


def statistics_after_forward(ddp: nn.Module, optimizer: torch.optim.Optimizer, step: int, *, spoil: bool) -> Any:
    """Take a step; return the statistics as they are between its forward and its backward pass."""
    own = []

    def look(*_: Any) -> None:
        if spoil:
            ddp.module[1].running_mean.data[0] = torch.nan
        own.append(statistics_of(ddp).clone())

    handle = ddp.register_forward_hook(look)
    step_once(ddp, optimizer, step)
    handle.remove()
    return own[0]


EXCHANGES = [
    {"exchange": "allgather_topk", "ratio": 0.1, "fusion": "step", "algorithm": "one_shot"},
    {"exchange": "star_topk", "ratio": 0.1, "fusion": "bucket", "algorithm": "ring"},
    {"exchange": "star_topk", "ratio": 0.1, "fusion": "step", "values": "fp16"},
    {"exchange": "var_topk", "ratio": 0.1},
    {"exchange": "quantized", "bits": 8},
    {"exchange": "dense", "algorithm": "ring"},
    {"exchange": "dense", "algorithm": "native", "fusion": "bucket"},
]


@pytest.mark.parametrize("config", EXCHANGES, ids=lambda config: "-".join(map(str, config.values())))
def test_all_ranks_get_the_average_and_ddp_broadcasts_nothing(pool, config):
    for seen in pool.run(train, config, num_ranks=3):
        assert seen["num_broadcasts"] == 0
        assert not torch.equal(seen["before"][0], seen["before"][1])  # every rank has seen its own batches
        assert torch.allclose(seen["averaged"][0], seen["before"].mean(dim=0), atol=1e-6)
        assert len({bits(row) for row in seen["averaged"]}) == 1


def test_a_rank_whose_means_are_not_finite_gets_those_of_the_others(pool):
    for seen in pool.run(train, EXCHANGES[0], "average", 1, num_ranks=3):
        assert seen["before"][1].isnan().any()
        of_mean, of_variance = slice(0, 32), slice(32, 64)
        finite = seen["before"][[0, 2], of_mean]
        assert torch.allclose(seen["averaged"][1, of_mean], finite.mean(dim=0), atol=1e-6)
        assert torch.allclose(seen["averaged"][1, of_variance], seen["before"][:, of_variance].mean(dim=0), atol=1e-6)


def test_they_may_be_left_to_ddp(pool):
    for seen in pool.run(train, EXCHANGES[0], "ddp", num_ranks=2):
        assert seen["num_broadcasts"] == NUM_STEPS
        assert not torch.equal(seen["averaged"][0], seen["averaged"][1])  # until the next forward pass


def two_forward_passes() -> int:
    """As for two views of a batch: the buffers change between the backward passes."""
    ddp = wrap(with_batch_norm())
    handle = headway.attach(ddp, fixed(**EXCHANGES[0]))
    for step in range(BUFFERS_EVERY):
        losses = [loss_of(ddp.module, step), loss_of(ddp, step + 1)]
        losses[1].backward()
        losses[0].backward()
    num_steps = handle.statistics().step
    handle.close()
    return num_steps


def test_a_graph_that_is_still_needed_stays_valid(pool):
    assert pool.run(two_forward_passes, num_ranks=2) == [BUFFERS_EVERY] * 2


class Replacing(nn.Module):
    """Its buffers: one that every step replaces by another tensor, one that is never finite, one that stays."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.layer = nn.Linear(20, 5)
        self.register_buffer("centre", torch.zeros(5))
        self.register_buffer("mask", torch.full((5, 5), -torch.inf).triu(1))
        self.register_buffer("positions", torch.linspace(0, 1, 7, dtype=torch.float64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.layer(x)
        self.centre = 0.9 * self.centre + 0.1 * y.detach().mean(dim=0)
        return y


def train_with_odd_buffers() -> dict[str, torch.Tensor]:
    ddp = wrap(Replacing())
    handle = headway.attach(ddp, fixed(**EXCHANGES[0]))
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05)
    for step in range(NUM_STEPS):
        step_once(ddp, optimizer, step)
    handle.close()
    return {name: gathered(buffer) for name, buffer in ddp.module.named_buffers()}


def test_buffers_may_be_replaced_constant_or_infinite(pool):
    for seen in pool.run(train_with_odd_buffers, num_ranks=3):
        assert len({bits(row) for row in seen["centre"]}) == 1
        assert seen["centre"][0].any()
        for name in ("mask", "positions"):
            assert all(torch.equal(row, getattr(Replacing(), name)) for row in seen[name])


def average_when_asked(buffers: str) -> dict[str, torch.Tensor]:
    """Train for fewer steps than lie between two averages, then ask for one."""
    ddp = wrap(with_batch_norm())
    handle = headway.attach(ddp, fixed(**EXCHANGES[0]), buffers=buffers)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05)
    for step in range(3):
        step_once(ddp, optimizer, step)
    before = gathered(statistics_of(ddp))
    handle.average_buffers()
    handle.close()
    return {"before": before, "after": gathered(statistics_of(ddp))}


def test_they_are_averaged_when_asked_for(pool):
    for seen in pool.run(average_when_asked, "average", num_ranks=3):
        assert not torch.equal(seen["before"][0], seen["before"][1])
        assert torch.allclose(seen["after"][0], seen["before"].mean(dim=0), atol=1e-6)
        assert len({bits(row) for row in seen["after"]}) == 1
    for seen in pool.run(average_when_asked, "ddp", num_ranks=2):
        assert torch.equal(seen["after"], seen["before"])


def train_in_parts(stop_at: int | None) -> bytes:
    """Train, with a new model that continues from the states of the first one if there is a stop; return statistics."""
    ddp = wrap(with_batch_norm())
    handle = headway.attach(ddp, fixed(**EXCHANGES[0]))
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05)
    for step in range(NUM_STEPS):
        if step == stop_at:
            states = ddp.module.state_dict(), handle.state_dict()
            handle.close()
            ddp = wrap(with_batch_norm())
            handle = headway.attach(ddp, fixed(**EXCHANGES[0]))
            optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05)
            ddp.module.load_state_dict(states[0])
            handle.load_state_dict(states[1])
        step_once(ddp, optimizer, step)
    handle.close()
    return bits(statistics_of(ddp))


def test_a_resumed_run_has_the_same_ones_to_the_bit(pool):
    straight = pool.run(train_in_parts, None, num_ranks=3)
    assert pool.run(train_in_parts, BUFFERS_EVERY + 7, num_ranks=3) == straight
    assert len(set(straight)) == 1


class Caching(nn.Module):
    """Its buffers: a mean in double precision, one that rank 1 lets grow, and a cache that is not saved."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.layer = nn.Linear(20, 5)
        self.register_buffer("mean", torch.zeros(5, dtype=torch.float64))
        self.register_buffer("seen", torch.zeros(3))
        self.register_buffer("cache", torch.zeros(1000), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.layer(x)
        self.mean += 1e-9 * y.detach().double().mean(dim=0) + 1
        self.seen = self.seen + 1 + dist.get_rank()
        if dist.get_rank() == 1:
            self.seen, self.cache = torch.cat([self.seen, torch.ones(1)]), torch.cat([self.cache, torch.ones(1)])
        return y


def train_with_caches() -> dict[str, Any]:
    """Return what is in the buffers between forward and backward, when they are due, and afterwards."""
    ddp = wrap(Caching())
    broadcasts = count_broadcasts(ddp)
    handle = headway.attach(ddp, fixed(**EXCHANGES[0], link=FAR))
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05)
    before: list[torch.Tensor] = []
    ddp.register_forward_hook(lambda *_: before.append(ddp.module.mean.clone()))
    for step in range(BUFFERS_EVERY):
        step_once(ddp, optimizer, step)
    sizes = [record.wire_bytes for record in handle.records]
    handle.close()
    return {
        "before": gathered(before[-1]),
        "after": gathered(ddp.module.mean),
        "seen": ddp.module.seen,
        "num_cached": ddp.module.cache.numel(),
        "num_broadcasts": len(broadcasts),
        "added_bytes": sizes[-1] - sizes[-2],
    }


def test_caches_are_left_alone_and_no_buffer_that_grows_changes_what_is_sent(pool):
    results = pool.run(train_with_caches, num_ranks=3)
    for rank, seen in enumerate(results):
        assert seen["num_broadcasts"] == 0
        assert seen["num_cached"] == (1000 + BUFFERS_EVERY if rank == 1 else 1000)
        assert seen["added_bytes"] == 2 * 8 * (5 + 3 + 2)  # to two ranks, in double precision, with a flag for each
    assert torch.equal(results[0]["seen"], torch.full((3,), 2.0 * BUFFERS_EVERY))  # the mean of ranks 0 and 2
    assert torch.equal(results[2]["seen"], results[0]["seen"])
    assert results[1]["seen"].numel() == 3 + BUFFERS_EVERY


def test_buffers_in_double_precision_are_averaged_in_it(pool):
    for seen in pool.run(train_with_caches, num_ranks=3):
        assert not torch.equal(seen["before"][0], seen["before"][1])
        assert len({bits(row) for row in seen["after"]}) == 1
        assert torch.allclose(seen["after"][0], seen["before"].mean(dim=0), rtol=1e-14, atol=0)


class OnlyCaching(nn.Linear):
    """Like a model with rotary embeddings: all its buffers are caches."""

    def __init__(self) -> None:
        super().__init__(20, 5)
        self.register_buffer("frequencies", torch.linspace(0, 1, 7), persistent=False)


def attach_to_caches() -> bool:
    ddp = wrap(OnlyCaching())
    headway.attach(ddp, fixed(**EXCHANGES[0])).close()
    return ddp.broadcast_buffers


def test_caches_alone_are_not_broadcast_either(pool):
    assert pool.run(attach_to_caches, num_ranks=2) == [False, False]


class OfSizes(nn.Linear):
    """A model with buffers of given sizes."""

    def __init__(self, *sizes: int) -> None:
        super().__init__(20, 5)
        for number, size in enumerate(sizes):
            self.register_buffer(f"buffer{number}", torch.zeros(size))


def attach_to_other_buffers() -> str:
    """Six entries on both ranks, but in one buffer or in two."""
    ddp = wrap(OfSizes(*((6,), (3, 3))[dist.get_rank()]), init_sync=False)
    try:
        headway.attach(ddp, fixed(**EXCHANGES[0])).close()
    except ValueError as error:
        return str(error)
    return "accepted"


def test_ranks_with_other_buffers_are_told(pool):
    for said in pool.run(attach_to_other_buffers, num_ranks=2):
        assert said.startswith("ranks [1] have another configuration than rank 0")


def attach_differently() -> tuple[str, bool]:
    """Rank 1 leaves its buffers to DDP; return the error, and whether DDP still broadcasts."""
    ddp = wrap(with_batch_norm())
    try:
        headway.attach(ddp, fixed(**EXCHANGES[0]), buffers=("average", "ddp")[dist.get_rank()])
    except ValueError as error:
        return str(error), ddp.broadcast_buffers
    return "accepted", ddp.broadcast_buffers


def test_ranks_that_treat_buffers_differently_are_told_and_nothing_has_changed(pool):
    for said, ddp_broadcasts in pool.run(attach_differently, num_ranks=2):
        assert said.startswith("ranks [1] have another configuration than rank 0")
        assert ddp_broadcasts


def take_over_and_give_back() -> list[bool]:
    """As with a Trainer, whose model keeps its hook while handles change."""
    ddp = wrap(with_batch_norm())
    seen = []
    for buffers in ("average", "average", "ddp", "average"):
        headway.HookState(fixed(**EXCHANGES[0]), module=ddp, buffers=buffers).close()
        seen.append(ddp.broadcast_buffers)
    return seen


def test_a_later_handle_may_give_them_back_to_ddp(pool):
    assert pool.run(take_over_and_give_back, num_ranks=2) == [[False, False, True, False]] * 2


def payloads(latency_s: float) -> list[list[int]]:
    """Return the bytes of the exchanges with and without buffers, on a link of this latency."""
    link = headway.Link(latency_s=latency_s, bandwidth_bps=1e6)
    seen = train(EXCHANGES[0] | {"link": link})["records"]
    return [[r.wire_bytes for r in seen if (r.step + 1) % BUFFERS_EVERY == due] for due in (0, 1)]


def test_they_travel_with_gradients_only_where_that_is_cheaper(pool):
    """An all-gather sends them N - 1 times, an all-reduce of their own fewer times, but with latencies of its own."""
    for with_buffers, without in pool.run(payloads, 0.05, num_ranks=4):
        num_bytes = 4 * (2 * 32 + 2)
        assert {count - 3 * num_bytes for count in with_buffers} == set(without)
    for with_buffers, without in pool.run(payloads, 0.0, num_ranks=4):
        assert set(with_buffers) == set(without)


def attach_in_some_ways() -> dict[str, Any]:
    said: dict[str, Any] = {}
    for name, model, options in (
        ("batch norm", with_batch_norm(), {}),
        ("none", nn.Linear(20, 5), {}),
        ("local", with_batch_norm(), {"forward_sync_buffers": False}),
    ):
        lines: list[str] = []
        listener = logging.Handler()
        listener.emit = lambda record, lines=lines: lines.append(record.getMessage())
        logger = logging.getLogger("headway")
        logger.addHandler(listener)
        level = logger.level
        logger.setLevel(logging.INFO)
        ddp = wrap(model, **options)
        handle = headway.attach(ddp, headway.Fixed(exchange="dense", link=LINK))
        logger.removeHandler(listener)
        logger.setLevel(level)
        said[name] = ([line for line in lines if "buffers" in line], ddp.broadcast_buffers)
        handle.close()
    return said


def test_the_log_says_so(pool):
    for said in pool.run(attach_in_some_ways, num_ranks=2):
        assert said["batch norm"][0][0].startswith("2 buffers are averaged every 20 steps; DDP no longer broadcasts")
        assert said["none"] == ([], True)
        assert said["local"] == ([], False)  # whoever switched the broadcast off wants local statistics
