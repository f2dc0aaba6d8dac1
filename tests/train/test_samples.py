"""Samples, and the order in which ranks see them."""

from __future__ import annotations

import pytest
import torch

from headway.train.samples import BatchOrder, Samples


def orders(num_ranks: int, *, num_samples: int = 103, batch_size: int = 4, seed: int = 0) -> list[BatchOrder]:
    return [BatchOrder(num_samples, batch_size, rank, num_ranks, seed) for rank in range(num_ranks)]


@pytest.mark.parametrize("num_ranks", [1, 2, 3, 7])
def test_in_an_epoch_no_sample_is_seen_twice(num_ranks):
    ranks = orders(num_ranks)
    seen = torch.cat([order.batch(step) for order in ranks for step in range(ranks[0].steps_per_epoch)])
    assert len(seen.unique()) == len(seen) == 103 // (4 * num_ranks) * 4 * num_ranks


def test_a_batch_depends_on_the_step_alone():
    one, other = orders(2)[1], orders(2)[1]
    for step in range(30):
        one.batch(step)
    assert one.batch(29).equal(other.batch(29))


def test_epochs_and_seeds_differ():
    order = orders(2)[0]
    again = order.batch(order.steps_per_epoch)
    assert not order.batch(0).equal(again)
    assert not order.batch(0).equal(orders(2, seed=1)[0].batch(0))


def test_too_few_samples_are_rejected():
    with pytest.raises(ValueError, match="10 samples are too few for 3 workers with a batch of 4 each"):
        orders(3, num_samples=10)


def test_batches_follow_the_generator():
    samples = Samples(torch.arange(100.0)[:, None], torch.arange(100))
    first, second = (samples.batch(16, torch.Generator().manual_seed(3)) for _ in range(2))
    assert torch.equal(first[0], second[0])
    assert torch.equal(first[0][:, 0].long(), first[1])
