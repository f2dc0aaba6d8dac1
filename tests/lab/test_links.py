import numpy as np
import pytest

from headway.lab import HostRule, LinkSpec, PairRule, Phase, Scenario, When, load_scenario
from headway.lab.links import all_tables, link_table, mtu_bytes, window_bytes


def test_later_rules_win():
    scenario = Scenario(
        link=LinkSpec(latency_s=0.01, bandwidth_bps=1e8),
        hosts=(HostRule(ranks=(1,), up_bps=1e6), HostRule(ranks=(2,), access_latency_s=0.005)),
        pairs=(PairRule(sources=(0,), targets=(1,), link=LinkSpec(latency_s=0.04, bandwidth_bps=5e7)),),
        phases=(Phase(start=When(at_s=10), link=LinkSpec(latency_s=0.02), hosts=(HostRule(ranks=(1,), up_bps=2e6),)),),
    )
    before, after = all_tables(scenario, 3)
    assert before.latency_s[0, 1] == 0.04
    assert before.latency_s[1, 0] == 0.01
    assert before.latency_s[0, 2] == before.latency_s[2, 0] == pytest.approx(0.015)
    assert before.up_bps.tolist() == [1e8, 1e6, 1e8]
    assert before.bandwidth_bps()[0].tolist()[1:] == [5e7, 1e8]
    assert after.latency_s[0, 1] == 0.04
    assert after.latency_s[1, 0] == 0.02
    assert after.up_bps.tolist() == [1e8, 2e6, 1e8]


def test_groups_of_ranks_fit_any_number_of_hosts():
    for num_hosts in (2, 3, 8):
        table = link_table(load_scenario("two_regions"), num_hosts, None)
        half = num_hosts // 2
        assert (table.latency_s[:half, half:] == 0.04).all()
        assert (table.latency_s[half:, :half] == 0.04).all()
        assert (table.pair_bps[:half, half:] == 1e8).all()
        inside = table.latency_s[half:, half:][~np.eye(num_hosts - half, dtype=bool)]
        assert (inside == 0.001).all()


def _tables(num_hosts, *rates, latency_s=0.0, hosts=()):
    phases = tuple(Phase(start=When(at_s=i), link=LinkSpec(bandwidth_bps=rate)) for i, rate in enumerate(rates[1:]))
    scenario = Scenario(link=LinkSpec(latency_s=latency_s, bandwidth_bps=rates[0]), phases=phases, hosts=hosts)
    return all_tables(scenario, num_hosts)


@pytest.mark.parametrize(
    ("num_hosts", "rates", "expected"),
    [(2, [1e7], 4000), (2, [1e8], 25000), (2, [1e9], 65000), (8, [4e7, 1e9], 20000), (2, [None], 65000)],
)
def test_packets_are_short_on_slow_links_and_few_on_fast_ones(num_hosts, rates, expected):
    assert mtu_bytes(_tables(num_hosts, *rates)) == expected


def test_a_fast_host_alone_does_not_make_packets_larger():
    lines = (HostRule(ranks="all", up_bps=2e7, down_bps=2e7), HostRule(ranks=(0,), up_bps=1e9, down_bps=1e9))
    assert mtu_bytes(_tables(4, 1e9, hosts=lines)) == 5000


def test_windows_fill_the_longest_and_fattest_link_and_no_more():
    assert window_bytes(_tables(2, 1e9, latency_s=0.05), 65000) == pytest.approx(1e9 / 8 * 0.11, rel=0.01)
    assert window_bytes(_tables(2, 1e7, latency_s=0.001), 4000) == 64000
    assert window_bytes(_tables(2, 1e7, 1e9, latency_s=0.05), 20000) == pytest.approx(1e9 / 8 * 0.11, rel=0.01)
