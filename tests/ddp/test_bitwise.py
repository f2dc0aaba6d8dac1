"""After every step parameters are equal to the bit on all ranks, for every exchange, algorithm and number of ranks.

No one file of the package is tested here, but the hook as a whole.
"""

from __future__ import annotations

import contextlib

import pytest

import headway
from headway.collectives import ALGORITHMS, NATIVE, Collective
from tests.ddp.training import EXCHANGES, ROUNDING, bits, train

pytestmark = pytest.mark.pool

ALL_ALGORITHMS = (NATIVE, *dict.fromkeys(name for names in ALGORITHMS.values() for name in names))


def algorithms_of(exchange: str) -> list[str]:
    found = []
    for name in ALL_ALGORITHMS:
        with contextlib.suppress(ValueError):
            found.append(headway.Fixed(exchange=exchange, algorithm=name).algorithm)
    return found


EVERY = [
    {"exchange": name, "algorithm": algorithm, "ratio": 0.05, "fusion": ("bucket", "step")[place % 2]}
    for name in EXCHANGES
    for place, algorithm in enumerate(algorithms_of(name))
]
NUM_STEPS = 10


def train_with_each(configs: list[dict], num_steps: int) -> list[dict]:
    return [train(config, num_steps=num_steps) for config in configs]


@pytest.mark.parametrize(("num_ranks", "one_in"), [(1, 9), (2, 1), (3, 4), (4, 9), (5, 11), (8, 17)])
def test_all_ranks_are_equal_to_the_bit(pool, num_ranks, one_in):
    """With many ranks, which are slow to set up, some of the matrix: the collectives' own tests have all of it.

    With one rank there is nothing to exchange, whatever the configuration.
    """
    some = EVERY[::one_in]
    ranks = pool.run(train_with_each, some, NUM_STEPS, num_ranks=num_ranks, timeout_s=200)
    for place, config in enumerate(some):
        results = [rank[place] for rank in ranks]
        assert len({bits(result["parameters"]) for result in results}) == 1, config
        assert max(result["lost"] for result in results) < ROUNDING, config
        if config["exchange"] != "randomk":  # which learns too little in so few steps
            assert min(results[0]["losses"][3:]) < results[0]["losses"][0], config
        if num_ranks == 1:
            assert results[0]["history"] == ()
            continue
        last = results[0]["history"][-1]
        assert (last.step, last.exchange, last.algorithm) == (NUM_STEPS - 1, config["exchange"], config["algorithm"])
        if config["exchange"] not in ("dense", "quantized"):  # compression really ran
            assert last.wire_bytes < 0.5 * last.dense_bytes
            assert last.gain < 1


@pytest.mark.parametrize(
    ("num_ranks", "options"),
    [(2, {}), (3, {}), (4, {}), (3, {"gradient_as_bucket_view": True}), (2, {"find_unused_parameters": True})],
)
def test_dense_and_native_is_plain_ddp_to_the_bit(pool, num_ranks, options):
    config = {"exchange": "dense", "algorithm": NATIVE, "fusion": "bucket"}
    for rank in pool.run(hooked_and_plain, config, options, num_ranks=num_ranks):
        assert bits(rank[0]["parameters"]) == bits(rank[1]["parameters"])
        assert rank[0]["losses"] == rank[1]["losses"]
        assert rank[0]["lost"] < ROUNDING
        assert rank[0]["statistics"].exchanges["dense"].num_exchanges >= 2 * 20


def hooked_and_plain(config: dict, options: dict) -> list[dict]:
    return [train(config, ddp_options=options), train(None, ddp_options=options)]


@pytest.mark.parametrize("exchange", ["allgather_topk", "star_topk", "var_topk", "randomk"])
def test_ratio_one_is_plain_ddp_to_rounding(pool, exchange):
    for rank in pool.run(hooked_and_plain, {"exchange": exchange, "ratio": 1.0}, {}, num_ranks=3):
        difference = (rank[0]["parameters"] - rank[1]["parameters"]).abs().max()
        assert difference < 1e-4


def test_every_collective_is_in_the_matrix():
    covered = {config["algorithm"] for config in EVERY}
    for collective in (Collective.ALL_REDUCE, Collective.ALL_GATHER):
        assert set(ALGORITHMS[collective]) <= covered
    assert len(EVERY) > 50
