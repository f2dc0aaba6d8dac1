"""Random-k and its indices."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from headway.compress import RandomK, random_indices
from tests.compress.coding import normal, sent_by


def test_random_entries_travel_without_indices_and_another_key_draws_others():
    x = normal(1000)
    assert RandomK(0.1).num_bytes(1000) == 400
    one, other = sent_by(RandomK(0.1), x, 1), sent_by(RandomK(0.1), x, 2)
    assert int((one != 0).sum()) == int((other != 0).sum()) == 100
    assert ((one != 0) != (other != 0)).any()
    torch.testing.assert_close(one[one != 0], 10 * x[one != 0])


@given(st.integers(1, 100_000), st.integers(0, 2**63), st.data())
def test_random_indices_are_distinct_and_follow_from_the_key(numel, key, data):
    k = data.draw(st.integers(1, min(numel, 2000)))
    indices = random_indices(numel, k, key)
    assert torch.equal(indices, indices.unique())
    assert int(indices[0]) >= 0
    assert int(indices[-1]) < numel
    assert torch.equal(indices, random_indices(numel, k, key))


def test_random_indices_hit_every_entry_alike():
    counts = torch.zeros(100)
    for key in range(6000):
        counts[random_indices(100, 60, key).long()] += 1
    assert float((counts / 3600 - 1).abs().max()) < 0.06
