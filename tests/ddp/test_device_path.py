"""The way of tensors on other devices, torch operations and native collectives, forced on the CPU.

That way leads through the kernels and the executor; no one file of this folder is tested here.
"""

from __future__ import annotations

import pytest

from headway.kernels.arrays import torch_operations
from tests.ddp.training import EXCHANGES, ROUNDING, bits, train

pytestmark = pytest.mark.pool


def train_by_torch(options: dict) -> dict:
    with torch_operations():
        return train(options, num_steps=8)


def train_by_loops(options: dict) -> dict:
    return train(options, num_steps=8)


@pytest.mark.parametrize("name", EXCHANGES)
def test_torch_operations_and_native_collectives_do_the_same(pool, name):
    options = {"exchange": name, "ratio": 0.05, "fusion": "bucket"}
    by_torch = pool.run(train_by_torch, options, num_ranks=2)
    by_loops = pool.run(train_by_loops, options, num_ranks=2)
    assert bits(by_torch[0]["parameters"]) == bits(by_torch[1]["parameters"])
    assert by_torch[0]["lost"] < ROUNDING
    assert {record.algorithm for record in by_torch[0]["history"]} == {"native"}
    difference = (by_torch[0]["parameters"] - by_loops[0]["parameters"]).abs().max()
    assert difference < 1e-5
