"""The state of the emulated network, in flat arrays shared by the compiled relay and Python threads.

Aligned stores of eight bytes are atomic: a phase change writes to ``hosts`` and ``links`` while the relay runs, and
counters may be read at any time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from headway.lab.links import LinkTable

NOTHING = -1
"""The empty value of every slot number."""

PACKETS_PER_SENDER = 4096
"""A sender with this many packets inside the relay is not read: the rest waits in its TUN queue."""

NUM_FLOWS = 16
"""Queues per pair; the connections between two hosts are spread over them."""

HOST = np.dtype(
    [
        ("address", "i8"),  # IPv4, as a number
        ("up_bps", "f8"),
        ("down_bps", "f8"),
        ("cut", "i8"),  # 1: all traffic of this host is dropped
        ("up_free_s", "f8"),  # when the sending NIC has finished its packet
        ("up_turn", "i8"),  # the destination to serve first
        ("down_free_s", "f8"),
        ("down_head", "i8"),  # queue at the receiving NIC; its head is in service
        ("down_tail", "i8"),
        ("held_packets", "i8"),  # packets of this sender inside the relay
    ]
)
LINK = np.dtype(  # [source, target]
    [
        ("delay_s", "f8"),
        ("jitter_s", "f8"),
        ("loss", "f8"),
        ("rate_bps", "f8"),
        ("free_s", "f8"),
        ("num_waiting", "i8"),  # packets waiting for the sending NIC, in all flows
        ("flow_turn", "i8"),  # the flow to serve first
        ("last_arrival_s", "f8"),  # jitter must not reorder a pair: to TCP that looks like loss
        ("sent_packets", "i8"),
        ("sent_bytes", "i8"),
        ("lost_packets", "i8"),
    ]
)
FLOW = np.dtype([("head", "i8"), ("tail", "i8")])  # [source, target, flow]: a queue
PACKET = np.dtype(
    [
        ("source", "i4"),
        ("target", "i4"),
        ("size_bytes", "i4"),
        ("is_receiving", "i4"),  # 0 in flight, 1 at the receiving NIC
        ("first_s", "f8"),  # when its first and last bit reach the receiving NIC, then when the last one leaves it
        ("last_s", "f8"),
        ("next", "i8"),  # next in its queue, or next free slot
    ]
)
EVENT = np.dtype(
    [
        ("time_s", "f8"),
        ("order", "i8"),
        ("subject", "i8"),  # a packet's slot, or ~source: a NIC or link of that sender is free again
    ]
)
CONTROL = np.dtype(
    [
        ("running", "i8"),
        ("free_slot", "i8"),
        ("num_events", "i8"),
        ("num_scheduled", "i8"),
        ("num_delivered", "i8"),
        ("late_s", "f8"),  # lateness, summed over deliveries
        ("num_failed_writes", "i8"),
        ("failed_host", "i8"),
    ]
)


class Network(NamedTuple):
    """All arrays; ``payloads`` holds the bytes of the packet in each slot."""

    hosts: Any
    links: Any
    flows: Any
    packets: Any
    payloads: Any
    events: Any
    control: Any


def new_network(addresses: Sequence[int], mtu_bytes: int, packets_per_sender: int = PACKETS_PER_SENDER) -> Network:
    """Return an idle network without limits; payload memory that is never used costs nothing."""
    num_hosts = len(addresses)
    num_slots = num_hosts * packets_per_sender
    hosts = np.zeros(num_hosts, HOST)
    hosts["address"] = addresses
    hosts["up_bps"] = hosts["down_bps"] = np.inf
    hosts["down_head"] = hosts["down_tail"] = NOTHING
    links = np.zeros((num_hosts, num_hosts), LINK)
    links["rate_bps"] = np.inf
    flows = np.zeros((num_hosts, num_hosts, NUM_FLOWS), FLOW)
    flows["head"] = flows["tail"] = NOTHING
    packets = np.zeros(num_slots, PACKET)
    packets["next"] = np.arange(1, num_slots + 1)
    packets["next"][-1] = NOTHING
    # One event per packet, and two per NIC and link: a packet that arrives when a NIC has just become free, but before
    # that event was processed, starts the NIC at once; the stale event then finds it busy and does nothing.
    events = np.zeros(num_slots + 2 * (num_hosts + num_hosts**2), EVENT)
    control = np.zeros(1, CONTROL)
    control["running"] = 1
    control["failed_host"] = NOTHING
    return Network(hosts, links, flows, packets, np.zeros((num_slots, mtu_bytes), np.uint8), events, control)


def apply_links(network: Network, table: LinkTable) -> None:
    """Put links in force at once, for waiting packets too, but not for those in flight."""
    network.hosts["up_bps"] = table.up_bps
    network.hosts["down_bps"] = table.down_bps
    network.links["delay_s"] = table.latency_s
    network.links["jitter_s"] = table.jitter_s
    network.links["loss"] = table.loss
    network.links["rate_bps"] = table.pair_bps
