"""The predicted cost of a round is that of the messages that ranks really send."""

from __future__ import annotations

import pytest

from headway.collectives import neighbour_exchange, shared_payloads
from headway.compress import StochasticQuantizer
from headway.gossip import GRAPHS, gossip_cost, topology_of
from headway.network import Calibration, Link
from tests.gossip.problem import descend

FAR = Calibration(link=Link(latency_s=0.05, bandwidth_bps=1e7))
NUMEL = 40
"""Of the quadratic that ranks descend."""


@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("num_ranks", [2, 3, 5, 8, 13])
def test_messages_share_the_nic_of_the_busiest_rank(name, num_ranks):
    """As a fluid simulation of all messages at once says."""
    topology, compressor = topology_of(name, num_ranks), StochasticQuantizer(bits=8)
    cost = gossip_cost(compressor, topology, 1000, FAR, compute_s=0.25)
    payloads = shared_payloads(neighbour_exchange(topology.neighbours))
    assert cost.bandwidth_s == pytest.approx(payloads * (8 + compressor.num_bytes(1000)) * 8 / 1e7)
    assert cost.latency_s == 0.05
    assert cost.compute_s == 0.25
    assert cost.seconds == cost.latency_s + cost.bandwidth_s + cost.overhead_s + cost.compute_s


def test_a_single_rank_costs_nothing():
    cost = gossip_cost(StochasticQuantizer(bits=8), topology_of("ring", 1), 1000, FAR, compute_s=0.25)
    assert (cost.seconds, cost.wire_bytes) == (0, 0)


@pytest.mark.pool
def test_the_busiest_rank_sends_as_many_bytes_as_predicted(pool):
    options = {"topology": "star", "compressor": StochasticQuantizer(bits=8, step=0.1)}
    seen = pool.run(descend, options, 3, num_ranks=4)
    cost = gossip_cost(options["compressor"], topology_of("star", 4), NUMEL, FAR)
    assert [rank["statistics"].wire_bytes for rank in seen] == [3 * cost.wire_bytes, *[cost.wire_bytes] * 3]
