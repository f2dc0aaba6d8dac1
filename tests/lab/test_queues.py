"""Queue arithmetic on a virtual clock: no sockets, no sleeping."""

import numpy as np
import pytest

from headway.lab.links import link_table
from headway.lab.queues import admit, may_admit, next_delivery, release
from headway.lab.scenario import HostRule, LinkSpec, PairRule, Scenario
from headway.lab.state import NOTHING, PACKETS_PER_SENDER, apply_links, new_network

FOREVER_S = 1e9


def _network(num_hosts=2, *, latency_s=0.0, bandwidth_bps=8e6, **rules):
    scenario = Scenario(link=LinkSpec(latency_s=latency_s, bandwidth_bps=bandwidth_bps), **rules)
    network = new_network(range(1, num_hosts + 1), 100)
    apply_links(network, link_table(scenario, num_hosts, None))
    return network


def _send(network, source, target, size_bytes=1000, at_s=0.0, *, flow=0, skips_queue=False):
    admit(network, source, target, size_bytes, flow, skips_queue, at_s)


def _deliveries(network, until_s=FOREVER_S):
    """(target, time) of all that arrives, in order."""
    arrived = []
    while (slot := next_delivery(network, until_s)) != NOTHING:
        packet = network.packets[slot]
        arrived.append((int(packet["target"]), round(float(packet["last_s"]), 9)))
        release(network, slot)
    return arrived


def _sizes_in_order(network):
    sizes = []
    while (slot := next_delivery(network, FOREVER_S)) != NOTHING:
        sizes.append(int(network.packets[slot]["size_bytes"]))
        release(network, slot)
    return sizes


def test_one_packet_takes_latency_and_its_own_time_once():
    network = _network(latency_s=0.02)  # 1000 bytes take 1 ms
    _send(network, 0, 1)
    assert _deliveries(network) == [(1, 0.021)]


def test_packets_follow_each_other_at_the_rate_of_the_sender():
    network = _network(latency_s=0.02)
    for _ in range(3):
        _send(network, 0, 1)
    assert _deliveries(network) == [(1, 0.021), (1, 0.022), (1, 0.023)]


def test_a_slow_receiver_queues():
    network = _network(3, hosts=(HostRule(ranks=(2,), down_bps=4e6),))
    _send(network, 0, 2)
    _send(network, 1, 2)
    assert _deliveries(network) == [(2, 0.002), (2, 0.004)]


def test_two_senders_share_a_receiver_of_the_same_rate():
    network = _network(3)
    for source in (0, 1):
        for _ in range(2):
            _send(network, source, 2)
    assert [time for _, time in _deliveries(network)] == [0.001, 0.002, 0.003, 0.004]


def test_a_fast_receiver_takes_in_the_sum_of_slow_senders():
    network = _network(5, bandwidth_bps=8e6, hosts=(HostRule(ranks=(4,), down_bps=32e6),))
    for source in range(4):
        _send(network, source, 4)
    assert max(time for _, time in _deliveries(network)) == pytest.approx(0.001)


def test_a_slow_pair_delays_no_other_pair():
    slow = PairRule(sources=(0,), targets=(1,), link=LinkSpec(bandwidth_bps=8e4))
    network = _network(3, pairs=(slow,))
    _send(network, 0, 1)
    _send(network, 0, 1)
    _send(network, 0, 2)
    arrived = _deliveries(network)
    assert arrived[0] == (2, 0.002)
    assert arrived[1:] == [(1, 0.1), (1, 0.2)]


def test_destinations_take_turns():
    network = _network(3)
    for target in (1, 1, 1, 2, 2, 2):
        _send(network, 0, target)
    assert [target for target, _ in _deliveries(network)] == [1, 2, 1, 2, 1, 2]


def test_both_directions_at_once():
    network = _network()
    _send(network, 0, 1)
    _send(network, 1, 0)
    assert _deliveries(network) == [(1, 0.001), (0, 0.001)]


def test_an_acknowledgement_overtakes_waiting_data():
    network = _network(latency_s=0.01)
    for _ in range(5):
        _send(network, 0, 1)
    _send(network, 0, 1, size_bytes=50, skips_queue=True)
    assert _sizes_in_order(network) == [1000, 50, 1000, 1000, 1000, 1000]


def test_connections_of_a_pair_take_turns():
    network = _network()
    for _ in range(50):
        _send(network, 0, 1, flow=3)
    _send(network, 0, 1, size_bytes=60, flow=4)
    assert _sizes_in_order(network).index(60) <= 2


def test_order_within_a_connection_is_kept():
    network = _network()
    for i in range(40):
        _send(network, 0, 1, size_bytes=100 + i, flow=i % 2)
    sizes = _sizes_in_order(network)
    assert [size for size in sizes if size % 2 == 0] == list(range(100, 140, 2))
    assert [size for size in sizes if size % 2] == list(range(101, 140, 2))


def test_a_change_of_rate_acts_on_what_waits():
    network = _network()
    for _ in range(3):
        _send(network, 0, 1)
    assert _deliveries(network, until_s=0.0015) == [(1, 0.001)]
    apply_links(network, link_table(Scenario(link=LinkSpec(bandwidth_bps=8e5)), 2, None))
    assert _deliveries(network) == [(1, 0.011), (1, 0.021)]


def test_a_shorter_delay_does_not_reorder():
    network = _network(latency_s=0.1)
    _send(network, 0, 1, 1000)
    apply_links(network, link_table(Scenario(link=LinkSpec(latency_s=0.001, bandwidth_bps=8e6)), 2, None))
    _send(network, 0, 1, 500, at_s=0.01)
    assert _sizes_in_order(network) == [1000, 500]


def test_jitter_spreads_the_delay():
    network = _network(latency_s=0.02, bandwidth_bps=8e9)
    network.links["jitter_s"] = 0.01
    for i in range(500):
        _send(network, 0, 1, at_s=i * 0.1)
    times = np.array([time for _, time in _deliveries(network)])
    delays = times - np.arange(500) * 0.1
    assert delays.min() >= 0.01
    assert delays.max() <= 0.0301
    assert delays.std() == pytest.approx(0.02 / np.sqrt(12), rel=0.2)


def test_jitter_never_reorders_a_pair():
    network = _network(latency_s=0.02, bandwidth_bps=8e9)
    network.links["jitter_s"] = 0.01
    for i in range(300):
        _send(network, 0, 1, i + 1, at_s=i * 0.001)
    assert _sizes_in_order(network) == list(range(1, 301))


def test_loss_drops_its_share_and_counts_it():
    network = _network(bandwidth_bps=8e12)
    network.links["loss"] = 0.2
    num_arrived = 0
    for i in range(2000):
        _send(network, 0, 1, at_s=float(i))
        num_arrived += len(_deliveries(network, until_s=i + 0.5))
    lost = int(network.links[0, 1]["lost_packets"])
    assert num_arrived + lost == 2000
    assert 0.15 < lost / 2000 < 0.25


@pytest.mark.parametrize("host", [0, 1])
def test_a_cut_host_neither_sends_nor_receives(host):
    network = _network()
    network.hosts["cut"][host] = 1
    _send(network, 0, 1)
    _send(network, 1, 0)
    assert _deliveries(network) == []
    network.hosts["cut"][host] = 0
    _send(network, 0, 1, at_s=1.0)
    assert _deliveries(network) == [(1, 1.001)]


def test_back_pressure_and_slots_come_back():
    network = _network()
    for _ in range(PACKETS_PER_SENDER):
        assert may_admit(network, 0)
        _send(network, 0, 1)
    assert not may_admit(network, 0)
    assert may_admit(network, 1)
    assert len(_deliveries(network)) == PACKETS_PER_SENDER
    assert may_admit(network, 0)
    for _ in range(PACKETS_PER_SENDER):
        _send(network, 0, 1, at_s=100.0)
    assert len(_deliveries(network)) == PACKETS_PER_SENDER


def test_counters():
    network = _network(3)
    _send(network, 0, 1, 700)
    _send(network, 0, 1, 300)
    _send(network, 2, 0, 50)
    assert network.links["sent_bytes"].tolist() == [[0, 1000, 0], [0, 0, 0], [50, 0, 0]]
    assert network.links["sent_packets"].tolist() == [[0, 2, 0], [0, 0, 0], [1, 0, 0]]


def test_throughput_of_many_packets_is_the_rate():
    network = _network(4, latency_s=0.05, bandwidth_bps=1e8)
    last = 0.0
    for i in range(3000):
        _send(network, i % 4, (i + 1) % 4, 4000, at_s=last)
        arrived = _deliveries(network, until_s=last)
        last = max([last, *(time for _, time in arrived)])
    last = max(time for _, time in _deliveries(network))
    assert last == pytest.approx(0.05 + 750 * 4000 * 8 / 1e8, rel=0.02)
