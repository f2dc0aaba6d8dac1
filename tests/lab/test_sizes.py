import pytest

from headway.lab import HostRule, Link, Phase, Scenario, When
from headway.lab.links import all_tables
from headway.lab.sizes import mtu_bytes, window_bytes


def _tables(num_hosts, *rates, latency_s=0.0, hosts=()):
    phases = tuple(Phase(start=When(at_s=i), link=Link(bandwidth_bps=rate)) for i, rate in enumerate(rates[1:]))
    scenario = Scenario(link=Link(latency_s=latency_s, bandwidth_bps=rates[0]), phases=phases, hosts=hosts)
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
