"""Every exchange on real ranks against plain numpy, and its guarantees."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from headway import MessageError
from headway.collectives import Collective, Executor
from headway.compress import BucketMemory, Shape, random_indices
from headway.exchange import EXCHANGES, ExecutorChannel, Job, Plan, exchange_of
from headway.exchange.union_topk import fill_up
from headway.kernels import VALUE_FORMATS, noise_key
from headway.network import Link
from tests.exchange import reference

pytestmark = pytest.mark.pool

LINK = Link(latency_s=0.001, bandwidth_bps=1e8)
SIZES = [700, 31, 269]
NUMEL = sum(SIZES)
NUM_STEPS = 6
RATIO = 0.05
SEED = 7


def gradient_of(rank: int, step: int) -> np.ndarray:
    return np.random.default_rng([rank, step]).normal(size=NUMEL).astype(np.float32) ** 3


def run_steps(options: dict, dtype: torch.dtype = torch.float32, spoil: dict | None = None) -> list[dict]:
    """Run an exchange for some steps; return average, residuals and gain of each. ``spoil``: {(rank, step): value}."""
    with Executor(timeout_s=20) as executor:
        channel, memory = ExecutorChannel.over(executor, LINK), BucketMemory(Shape(tuple(SIZES)))
        exchange = exchange_of(Plan(**options))
        seen = []
        for step in range(NUM_STEPS):
            gradient = torch.from_numpy(gradient_of(executor.rank, step)).to(dtype)
            if spoil and (executor.rank, step) in spoil:
                gradient[::50] = spoil[executor.rank, step]
            before = memory.residual.clone() if memory.is_used else torch.zeros(NUMEL)
            job = Job(step=step, bucket=0, gradient=gradient.clone(), memory=memory, seed=SEED)
            gain = exchange.run(job, channel)
            residual = memory.residual.clone() if memory.is_used else torch.zeros(NUMEL)
            meter = channel.read_meter()
            predicted = [traffic.num_bytes for traffic in exchange.traffic(memory.shape, executor.num_ranks)]
            seen.append(
                {"gradient": gradient, "average": job.gradient, "before": before, "residual": residual, "gain": gain}
                | {"wire_bytes": meter.wire_bytes, "algorithm": meter.algorithm, "predicted": predicted}
            )
        return seen


def expected(exchange: str, step: int, gradients: list, residuals: list) -> np.ndarray:
    if exchange == "dense":
        return np.sum(gradients, axis=0) / len(gradients)
    if exchange == "layerwise_topk":
        return reference.average_of_sparse(gradients, residuals, SIZES, RATIO)
    if exchange in ("allgather_topk", "mstopk"):
        return reference.average_of_sparse(gradients, residuals, [NUMEL], RATIO)
    if exchange == "star_topk":
        return reference.star(gradients, residuals, RATIO, step)
    if exchange == "var_topk":
        return reference.var(gradients, residuals, RATIO)
    if exchange == "union_topk":
        num_sent = max(reference.num_kept(RATIO, NUMEL), len(gradients))
        key = noise_key(SEED, step, -1, 0)
        fill = lambda named: fill_up(torch.from_numpy(named), NUMEL, num_sent, key).numpy()  # noqa: E731
        return reference.union(gradients, residuals, RATIO, fill)
    indices = random_indices(NUMEL, reference.num_kept(RATIO, NUMEL), noise_key(SEED, step, -1, 0)).numpy()
    return reference.average_at(gradients, residuals, indices)


EXACT = [name for name in EXCHANGES if name != "quantized"]


@pytest.mark.parametrize("num_ranks", [1, 2, 3, 5])
@pytest.mark.parametrize("name", EXACT)
def test_an_exchange_does_what_its_paper_says(pool, name, num_ranks):
    ranks = pool.run(run_steps, {"exchange": name, "ratio": RATIO}, num_ranks=num_ranks)
    residuals = [np.zeros(NUMEL, dtype=np.float32) for _ in range(num_ranks)]
    for step in range(NUM_STEPS):
        average = expected(name, step, [gradient_of(rank, step) for rank in range(num_ranks)], residuals)
        for rank in range(num_ranks):
            seen = ranks[rank][step]
            np.testing.assert_allclose(seen["average"].numpy(), average, rtol=1e-5, atol=1e-6)
            np.testing.assert_allclose(seen["residual"].numpy(), residuals[rank], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", EXCHANGES)
def test_ranks_are_equal_to_the_bit_and_error_feedback_loses_nothing(pool, name):
    ranks = pool.run(run_steps, {"exchange": name, "ratio": RATIO}, num_ranks=3)
    for step in range(NUM_STEPS):
        averages = [ranks[rank][step]["average"].view(torch.int32) for rank in range(3)]
        assert torch.equal(averages[0], averages[1])
        assert torch.equal(averages[0], averages[2])
        total = sum(ranks[rank][step]["gradient"] + ranks[rank][step]["before"] for rank in range(3))
        left = sum(ranks[rank][step]["residual"] for rank in range(3))
        torch.testing.assert_close(3 * ranks[0][step]["average"] + left, total, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["star_topk", "var_topk", "randomk", "allgather_topk", "layerwise_topk", "mstopk"])
def test_sent_plus_residual_is_gradient_plus_residual_before_to_the_bit(pool, name):
    """On every rank and step; and what the ranks sent, added up, is the average."""
    ranks = pool.run(run_steps, {"exchange": name, "ratio": RATIO}, num_ranks=3)
    parts = SIZES if name == "layerwise_topk" else [NUMEL]
    num_sent = sum(reference.num_kept(RATIO, size) for size in parts)
    for seen in zip(*ranks, strict=True):
        all_sent = []
        for rank in seen:
            g = rank["gradient"] + rank["before"]
            sent = torch.where(rank["residual"] == 0, g, 0.0)
            assert torch.equal(sent + rank["residual"], g)
            assert int((sent != 0).sum()) == num_sent
            all_sent.append(sent)
        torch.testing.assert_close(seen[0]["average"], sum(all_sent) / 3, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["allgather_topk", "star_topk", "var_topk", "layerwise_topk", "mstopk", "randomk"])
def test_at_ratio_one_a_sparse_exchange_is_dense(pool, name):
    ranks = pool.run(run_steps, {"exchange": name, "ratio": 1.0}, num_ranks=3)
    for step in range(NUM_STEPS):
        mean = np.mean([gradient_of(rank, step) for rank in range(3)], axis=0)
        np.testing.assert_allclose(ranks[0][step]["average"].numpy(), mean, rtol=1e-5, atol=1e-6)
        assert not ranks[0][step]["residual"].any()
        assert ranks[0][step]["gain"] == pytest.approx(1)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        *((name, "fp16") for name in ("dense", "star_topk", "var_topk", "randomk", "layerwise_topk")),
        *(("allgather_topk", values) for values in VALUE_FORMATS[1:]),
        ("mstopk", "int8"),
    ],
)
def test_narrow_values_send_less_and_keep_the_rounding_error(pool, name, values):
    options = {"exchange": name, "ratio": RATIO, "algorithm": "ring"}
    wide = pool.run(run_steps, options, num_ranks=3)
    narrow = pool.run(run_steps, options | {"values": values}, num_ranks=3)
    for step in range(NUM_STEPS):
        assert narrow[0][step]["wire_bytes"] < 0.85 * wide[0][step]["wire_bytes"]
        total = sum(narrow[rank][step]["gradient"] + narrow[rank][step]["before"] for rank in range(3))
        left = sum(narrow[rank][step]["residual"] for rank in range(3))
        torch.testing.assert_close(3 * narrow[0][step]["average"] + left, total, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("name", ["star_topk", "var_topk", "randomk"])
def test_what_fp16_rounds_away_of_a_share_stays_in_the_residual(pool, name):
    """sent + residual == g + residual before, on every rank and step, where sent is N times what fp16 makes of g/N."""
    for rank in pool.run(run_steps, {"exchange": name, "ratio": RATIO, "values": "fp16"}, num_ranks=3):
        for seen in rank:
            g = seen["gradient"] + seen["before"]
            is_sent = seen["average"] != 0
            sent = torch.where(is_sent, 3 * (g / 3).half().float(), 0)
            torch.testing.assert_close(sent + seen["residual"], g, rtol=1e-6, atol=0)
            assert bool(seen["residual"][is_sent].any())


LARGE = 4 * 8192 + 3.0  # fp16 makes 8192 of a quarter, and sums of that are exact in whatever order


@pytest.mark.parametrize("name", ["dense", "star_topk", "var_topk", "randomk"])
def test_sums_of_large_fp16_values_stay_finite(pool, name):
    """As with a GradScaler: every rank's values fit into fp16, their sum would not."""
    options = {"exchange": name, "ratio": 1.0, "values": "fp16"}
    for seen in pool.run(run_large, options, num_ranks=4):
        assert torch.equal(seen["average"], torch.full((NUMEL,), LARGE - 3))
        assert torch.equal(seen["residual"], torch.full((NUMEL,), 3.0))


def run_large(options: dict) -> dict:
    with Executor(timeout_s=20) as executor:
        memory = BucketMemory(Shape(tuple(SIZES)))
        job = Job(step=0, bucket=0, gradient=torch.full((NUMEL,), LARGE), memory=memory)
        exchange_of(Plan(**options)).run(job, ExecutorChannel.over(executor, LINK))
        return {"average": job.gradient, "residual": memory.residual}


@pytest.mark.parametrize("num_ranks", [1, 3])
@pytest.mark.parametrize("name", EXCHANGES)
def test_the_bytes_predicted_are_those_sent(pool, name, num_ranks):
    """By a ring and a chain, every rank's share of each collective is known from its size alone."""
    options = {"exchange": name, "ratio": RATIO, "algorithm": "ring", "broadcast": "chain"}
    ranks = pool.run(run_steps, options, num_ranks=num_ranks)
    collectives = [traffic.collective for traffic in exchange_of(Plan(**options)).traffic(Shape(tuple(SIZES)), 4)]
    shares = {Collective.ALL_REDUCE: 2 * (num_ranks - 1), Collective.ALL_GATHER: num_ranks * (num_ranks - 1)}
    predicted = sum(
        num_bytes * shares.get(collective, num_ranks - 1)
        for collective, num_bytes in zip(collectives, ranks[0][0]["predicted"], strict=True)
    )
    assert sum(rank[-1]["wire_bytes"] for rank in ranks) == predicted


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", EXCHANGES)
def test_half_precision_gradients_are_averaged(pool, name, dtype):
    ranks = pool.run(run_steps, {"exchange": name, "ratio": 1.0}, dtype, num_ranks=2)
    for step in range(NUM_STEPS):
        average = ranks[0][step]["average"]
        assert average.dtype == dtype
        assert torch.equal(average, ranks[1][step]["average"])
        mean = (ranks[0][step]["gradient"].float() + ranks[1][step]["gradient"].float()) / 2
        tolerance = 0.05 * float(mean.abs().max())  # bfloat16 keeps eight bits
        torch.testing.assert_close(average.float(), mean, rtol=0.02, atol=tolerance)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("name", EXCHANGES)
def test_inf_and_nan_reach_all_ranks_and_are_gone_a_step_later(pool, name, value):
    """Whichever rank has it, and at any entries: a GradScaler must see it on all ranks."""
    for rank in range(3):
        options = {"exchange": name, "ratio": 0.001 if name != "quantized" else 1.0}
        for seen in pool.run(run_steps, options, torch.float32, {(rank, 1): value}, num_ranks=3):
            assert seen[0]["average"].isfinite().all()
            assert not seen[1]["average"].isfinite().all(), rank
            for step in range(1, NUM_STEPS):
                assert seen[step]["residual"].isfinite().all()
                assert step == 1 or seen[step]["average"].isfinite().all()


@pytest.mark.parametrize("name", ["star_topk", "var_topk"])
def test_the_payload_of_ar_topk_does_not_grow_with_ranks(pool, name):
    sent = {}
    for num_ranks in (2, 4):
        options = {"exchange": name, "ratio": 0.2, "algorithm": "ring", "broadcast": "chain"}
        ranks = pool.run(run_steps, options, num_ranks=num_ranks)
        sent[num_ranks] = max(seen[-1]["wire_bytes"] for seen in ranks)
    assert sent[4] < 1.7 * sent[2]


def tampered() -> str:
    with Executor(timeout_s=20) as executor:
        channel, memory = ExecutorChannel.over(executor, LINK), BucketMemory(Shape((5000,)))
        gather = executor.all_gather

        def spoil(message, algorithm):
            messages = gather(message, algorithm)
            messages[1] = 0  # no indices
            return messages

        executor.all_gather = spoil
        job = Job(step=0, bucket=0, gradient=torch.randn(5000), memory=memory, seed=0)
        try:
            exchange_of(Plan(exchange="allgather_topk", ratio=0.01)).run(job, channel)
        except MessageError as error:
            return f"{error.peer}: {error}"
    return "nothing was noticed"


def test_a_bad_message_names_the_peer(pool):
    for said in pool.run(tampered, num_ranks=2):
        assert said.startswith("1: message from rank 1: ")
