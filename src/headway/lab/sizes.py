"""How large packets and TCP windows should be for the links of a scenario."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from headway.lab.links import LinkTable

_PACKET_S = 0.002
"""A packet should occupy the slowest link for no longer than this, so that connections that share it take turns."""
_SMALLEST_MTU, _LARGEST_MTU = 4000, 65000
_PACKETS_PER_S = 50_000
"""What the relay manages with ease; larger packets where the fastest links would need more."""
_SLACK_S = 0.010
"""What the processes of a busy machine add to a round trip."""
_FEWEST_PACKETS = 16
_UNLIMITED_BPS = 10e9


def mtu_bytes(tables: Sequence[LinkTable]) -> int:
    """Return the size of packets: short on slow links, but not more of them than the relay can carry."""
    slowest_bps = min(float(_rates_bps(table).min()) for table in tables)
    fastest_bps = max(float(_rates_bps(table).max()) for table in tables)
    wanted = slowest_bps * _PACKET_S / 8
    needed = tables[0].num_hosts * fastest_bps / 8 / _PACKETS_PER_S
    return int(min(max(wanted, needed, _SMALLEST_MTU), _LARGEST_MTU))


def window_bytes(tables: Sequence[LinkTable], packet_bytes: int) -> int:
    """Return the largest product of rate and round trip, over all pairs and phases, but at least some packets."""
    products = (_rates_bps(table) / 8 * (table.latency_s + table.latency_s.T + _SLACK_S) for table in tables)
    return max(int(max(float(product.max()) for product in products)), _FEWEST_PACKETS * packet_bytes)


def _rates_bps(table: LinkTable) -> npt.NDArray[np.float64]:
    """Return the rate between each two hosts; a host does not talk to itself over its NIC."""
    rates = np.minimum(table.bandwidth_bps(), _UNLIMITED_BPS)
    if table.num_hosts > 1:
        np.fill_diagonal(rates, np.median(rates[~np.eye(table.num_hosts, dtype=bool)]))
    return rates
