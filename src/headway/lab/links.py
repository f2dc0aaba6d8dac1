"""The links of every pair and host at one moment, from the rules of a scenario."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from headway.lab.scenario import HostRule, Link, PairRule, Scenario, resolve_ranks

Array = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class LinkTable:
    """One way, [source, target] or [host]; bits per second are infinite where nothing limits them."""

    latency_s: Array
    jitter_s: Array
    loss: Array
    pair_bps: Array
    up_bps: Array
    down_bps: Array

    @property
    def num_hosts(self) -> int:
        """How many hosts there are."""
        return len(self.up_bps)

    def bandwidth_bps(self) -> Array:
        """Return what one bulk transfer gets: the least of sender, pair and receiver."""
        return np.minimum(np.minimum(self.up_bps[:, None], self.down_bps[None, :]), self.pair_bps)


def link_table(scenario: Scenario, num_hosts: int, phase: int | None) -> LinkTable:
    """Apply the default link, then the rules for hosts and pairs, then those of the phase; the later one wins.

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
    """Return the table of every phase, and the one outside of phases first."""
    return [link_table(scenario, num_hosts, phase) for phase in (None, *range(len(scenario.phases)))]


def _apply_default(table: LinkTable, link: Link) -> None:
    _apply_link(table, link, np.s_[:, :])
    if link.bandwidth_bps is not None:
        table.up_bps[:] = table.down_bps[:] = link.bandwidth_bps


def _apply_link(table: LinkTable, link: Link, where: Any) -> None:
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
