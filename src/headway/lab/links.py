"""The links of all pairs and hosts in one phase, from the rules of a scenario; sizes of packets and TCP windows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from headway.lab.scenario import HostRule, LinkSpec, PairRule, Scenario, resolve_ranks

Array = npt.NDArray[np.float64]

_PACKET_S = 0.002
"""A packet should occupy the slowest link no longer than this, so that connections can share it."""
_SMALLEST_MTU, _LARGEST_MTU = 4000, 65000
_PACKETS_PER_S = 50_000
"""What the relay handles easily; packets are larger where the fastest links would need more."""
_SLACK_S = 0.010
"""What a busy machine adds to a round trip."""
_FEWEST_PACKETS = 16
_UNLIMITED_BPS = 10e9


@dataclass(frozen=True, kw_only=True)
class LinkTable:
    """One-way links by [source, target] or [host]; bandwidths are infinite where nothing limits them."""

    latency_s: Array
    jitter_s: Array
    loss: Array
    pair_bps: Array
    up_bps: Array
    down_bps: Array

    @property
    def num_hosts(self) -> int:
        """Number of hosts."""
        return len(self.up_bps)

    def bandwidth_bps(self) -> Array:
        """Return the bandwidth of a single bulk transfer: the minimum of sender, pair and receiver."""
        return np.minimum(np.minimum(self.up_bps[:, None], self.down_bps[None, :]), self.pair_bps)


def link_table(scenario: Scenario, num_hosts: int, phase: int | None) -> LinkTable:
    """Apply the default link, then the rules for hosts and pairs, then those of the phase; later ones win.

    A default bandwidth is that of every NIC, each way.
    """
    table = LinkTable(
        latency_s=np.zeros((num_hosts, num_hosts)),
        jitter_s=np.zeros((num_hosts, num_hosts)),
        loss=np.zeros((num_hosts, num_hosts)),
        pair_bps=np.full((num_hosts, num_hosts), np.inf),
        up_bps=np.full(num_hosts, np.inf),
        down_bps=np.full(num_hosts, np.inf),
    )
    access_latency_s = np.zeros(num_hosts)
    _apply_default(table, scenario.link)
    in_force = None if phase is None else scenario.phases[phase]
    if in_force is not None:
        _apply_default(table, in_force.link)
    _apply_rules(table, access_latency_s, scenario.hosts, scenario.pairs)
    if in_force is not None:
        _apply_rules(table, access_latency_s, in_force.hosts, in_force.pairs)
    table.latency_s[...] += access_latency_s[:, None] + access_latency_s[None, :]
    np.fill_diagonal(table.latency_s, 0.0)
    return table


def all_tables(scenario: Scenario, num_hosts: int) -> list[LinkTable]:
    """Return the table outside of phases, and then that of every phase."""
    return [link_table(scenario, num_hosts, phase) for phase in (None, *range(len(scenario.phases)))]


def _apply_default(table: LinkTable, link: LinkSpec) -> None:
    _apply_link(table, link, np.s_[:, :])
    if link.bandwidth_bps is not None:
        table.up_bps[:] = table.down_bps[:] = link.bandwidth_bps


def _apply_link(table: LinkTable, link: LinkSpec, where: Any) -> None:
    for array, value in ((table.latency_s, link.latency_s), (table.jitter_s, link.jitter_s), (table.loss, link.loss)):
        if value is not None:
            array[where] = value


def _apply_rules(table: LinkTable, access: Array, hosts: Sequence[HostRule], pairs: Sequence[PairRule]) -> None:
    for rule in hosts:
        ranks = resolve_ranks(rule.ranks, table.num_hosts)
        for array, value in (
            (table.up_bps, rule.up_bps),
            (table.down_bps, rule.down_bps),
            (access, rule.access_latency_s),
        ):
            if value is not None:
                array[ranks] = value
    for pair in pairs:
        where = np.ix_(*(resolve_ranks(ranks, table.num_hosts) for ranks in (pair.sources, pair.targets)))
        _apply_link(table, pair.link, where)
        if pair.link.bandwidth_bps is not None:
            table.pair_bps[where] = pair.link.bandwidth_bps


def mtu_bytes(tables: Sequence[LinkTable]) -> int:
    """Return the size of packets: small on slow links, but not more of them than the relay can carry."""
    slowest_bps = min(float(_rates_bps(table).min()) for table in tables)
    fastest_bps = max(float(_rates_bps(table).max()) for table in tables)
    wanted = slowest_bps * _PACKET_S / 8
    needed = tables[0].num_hosts * fastest_bps / 8 / _PACKETS_PER_S
    return int(min(max(wanted, needed, _SMALLEST_MTU), _LARGEST_MTU))


def window_bytes(tables: Sequence[LinkTable], packet_bytes: int) -> int:
    """Return the largest bandwidth-delay product over all pairs and phases, but at least some packets."""
    products = (_rates_bps(table) / 8 * (table.latency_s + table.latency_s.T + _SLACK_S) for table in tables)
    return max(int(max(float(product.max()) for product in products)), _FEWEST_PACKETS * packet_bytes)


def _rates_bps(table: LinkTable) -> Array:
    """Return the bandwidth between every two hosts; a host has no link to itself, so the diagonal is the median."""
    rates = np.minimum(table.bandwidth_bps(), _UNLIMITED_BPS)
    if table.num_hosts > 1:
        np.fill_diagonal(rates, np.median(rates[~np.eye(table.num_hosts, dtype=bool)]))
    return rates
