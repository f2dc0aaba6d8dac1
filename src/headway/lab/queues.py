"""Queueing: when does each packet arrive?

    TUN of source -> [sending NIC and link of the pair] -> loss, delay, jitter -> [receiving NIC] -> TUN of target

- The sending NIC serves the destinations in turn, and for each the connections in turn, like the fair queueing of a
  Linux host: a bulk transfer does not delay a concurrent small message. A pair whose own link is slower than the NIC is
  skipped while that link is busy.
- The receiving NIC forwards a packet while it still arrives: an uncontended path pays for serialisation once, at its
  slowest server. Several senders to one receiver queue there.
- Only packets in service have a time; waiting packets have none, so that a change of rate affects all of them.

These functions take the time as an argument and do no I/O: ``relay`` calls them with a clock, tests without one.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from headway._compile import compiled
from headway.lab.state import NOTHING, NUM_FLOWS, PACKETS_PER_SENDER


@compiled
def _before(a: Any, b: Any) -> bool:
    return bool(a.time_s < b.time_s or (a.time_s == b.time_s and a.order < b.order))


@compiled
def _swap(events: Any, i: int, j: int) -> None:
    time_s, order, subject = events[i].time_s, events[i].order, events[i].subject
    events[i].time_s, events[i].order, events[i].subject = events[j].time_s, events[j].order, events[j].subject
    events[j].time_s, events[j].order, events[j].subject = time_s, order, subject


@compiled
def _schedule(network: Any, time_s: float, subject: int) -> None:
    """Add an event to the binary heap, ordered by time and then by order of scheduling."""
    events, control = network.events, network.control[0]
    child = control.num_events
    events[child].time_s, events[child].order, events[child].subject = time_s, control.num_scheduled, subject
    control.num_events += 1
    control.num_scheduled += 1
    while child > 0 and _before(events[child], events[(child - 1) // 2]):
        _swap(events, child, (child - 1) // 2)
        child = (child - 1) // 2


@compiled
def _pop(network: Any) -> int:
    """Remove the earliest event and return its subject."""
    events, control = network.events, network.control[0]
    subject = events[0].subject
    control.num_events -= 1
    count = control.num_events
    _swap(events, 0, count)
    parent = 0
    while True:
        child = 2 * parent + 1
        if child >= count:
            return int(subject)
        if child + 1 < count and _before(events[child + 1], events[child]):
            child += 1
        if not _before(events[child], events[parent]):
            return int(subject)
        _swap(events, parent, child)
        parent = child


@compiled
def may_admit(network: Any, source: int) -> bool:
    """Return whether the relay accepts another packet from this sender."""
    has_slot = network.control[0].free_slot != NOTHING
    return bool(has_slot and network.hosts[source].held_packets < PACKETS_PER_SENDER)


@compiled
def admit(
    network: Any, source: int, target: int, size_bytes: int, flow_number: int, skips_queue: bool, now_s: float
) -> None:
    """Queue the packet that was read into ``control.free_slot``; ``flow_number`` identifies its connection."""
    control = network.control[0]
    slot = control.free_slot
    packet, link = network.packets[slot], network.links[source, target]
    control.free_slot = packet.next
    packet.source, packet.target, packet.size_bytes, packet.next = source, target, size_bytes, NOTHING
    network.hosts[source].held_packets += 1
    link.sent_packets += 1
    link.sent_bytes += size_bytes
    if skips_queue:
        _transmit(network, slot, now_s)
        return
    flow = network.flows[source, target, flow_number % NUM_FLOWS]
    if flow.head == NOTHING:
        flow.head = slot
    else:
        network.packets[flow.tail].next = slot
    flow.tail = slot
    link.num_waiting += 1
    _run_sender(network, source, now_s)


@compiled
def release(network: Any, slot: int) -> None:
    """Free a packet's slot; it is the first to be reused, since its memory is most likely in cache."""
    packet, control = network.packets[slot], network.control[0]
    network.hosts[packet.source].held_packets -= 1
    packet.next = control.free_slot
    control.free_slot = slot


@compiled
def next_delivery(network: Any, now_s: float) -> int:
    """Process events due by ``now_s`` up to the next delivery; return its slot, to be released, or NOTHING.

    Each event happens at the time it was due, not at ``now_s``: a late caller delays a delivery, but lateness never
    adds up.
    """
    while network.control[0].num_events > 0 and network.events[0].time_s <= now_s:
        time_s = network.events[0].time_s
        subject = _pop(network)
        if subject < 0:
            _run_sender(network, ~subject, time_s)
        elif network.packets[subject].is_receiving == 0:
            _arrive(network, subject)
        else:
            _finish_receiving(network, subject)
            return subject
    return NOTHING


@compiled
def _is_lost(network: Any, packet: Any) -> bool:
    if network.hosts[packet.source].cut != 0 or network.hosts[packet.target].cut != 0:
        return True
    loss = network.links[packet.source, packet.target].loss
    return bool(loss > 0.0 and np.random.random() < loss)  # noqa: NPY002 (the generator that numba compiles)


@compiled
def _transmit(network: Any, slot: int, start_s: float) -> None:
    """Send a packet from ``start_s`` on, at the slower rate of NIC and link; then apply loss and delay."""
    packet = network.packets[slot]
    link = network.links[packet.source, packet.target]
    if _is_lost(network, packet):
        link.lost_packets += 1
        release(network, slot)
        return
    duration_s = packet.size_bytes * 8.0 / min(network.hosts[packet.source].up_bps, link.rate_bps)
    delay_s = link.delay_s
    if link.jitter_s > 0.0:
        delay_s = max(0.0, delay_s + link.jitter_s * (2.0 * np.random.random() - 1.0))  # noqa: NPY002
    # Never before its predecessor, even when a phase shortens the delay.
    packet.last_s = max(start_s + duration_s + delay_s, link.last_arrival_s)
    packet.first_s = packet.last_s - duration_s
    packet.is_receiving = 0
    link.last_arrival_s = packet.last_s
    _schedule(network, packet.last_s, slot)


@compiled
def _next_destination(network: Any, source: int, now_s: float) -> int:
    """Return the next host in turn that has a packet waiting and whose link is free."""
    num_hosts = len(network.hosts)
    for offset in range(num_hosts):
        target = (network.hosts[source].up_turn + offset) % num_hosts
        link = network.links[source, target]
        if link.num_waiting > 0 and link.free_s <= now_s:
            return int(target)
    return NOTHING


@compiled
def _take_waiting(network: Any, source: int, target: int) -> int:
    """Remove the first packet of the next flow in turn; at least one flow has a packet."""
    link = network.links[source, target]
    while True:
        flow = network.flows[source, target, link.flow_turn]
        link.flow_turn = (link.flow_turn + 1) % NUM_FLOWS
        if flow.head != NOTHING:
            slot = flow.head
            flow.head = network.packets[slot].next
            link.num_waiting -= 1
            return int(slot)


@compiled
def _run_sender(network: Any, source: int, now_s: float) -> None:
    """Send while the NIC is free: called when a packet is queued, and when the NIC or a link becomes free."""
    host = network.hosts[source]
    while host.up_free_s <= now_s:
        target = _next_destination(network, source, now_s)
        if target == NOTHING:
            return
        host.up_turn = target + 1
        link = network.links[source, target]
        slot = _take_waiting(network, source, target)
        size_bits = network.packets[slot].size_bytes * 8.0
        host.up_free_s = now_s + size_bits / host.up_bps
        link.free_s = now_s + size_bits / link.rate_bps
        if host.up_free_s > now_s:
            _schedule(network, host.up_free_s, ~source)
        if link.free_s > host.up_free_s:
            _schedule(network, link.free_s, ~source)
        _transmit(network, slot, now_s)


@compiled
def _start_receiving(network: Any, slot: int) -> None:
    """Serve a packet from its first bit on, until its last bit has arrived at the earliest.

    The NIC is busy only for the packet's own time at its rate: a fast receiver handles the sum of many slow senders.
    """
    packet = network.packets[slot]
    host = network.hosts[packet.target]
    start_s = max(packet.first_s, host.down_free_s)
    host.down_free_s = start_s + packet.size_bytes * 8.0 / host.down_bps
    packet.last_s = max(packet.last_s, host.down_free_s)
    packet.is_receiving = 1
    _schedule(network, packet.last_s, slot)


@compiled
def _arrive(network: Any, slot: int) -> None:
    host = network.hosts[network.packets[slot].target]
    network.packets[slot].next = NOTHING
    if host.down_head == NOTHING:
        host.down_head = host.down_tail = slot
        _start_receiving(network, slot)
    else:
        network.packets[host.down_tail].next = slot
        host.down_tail = slot


@compiled
def _finish_receiving(network: Any, slot: int) -> None:
    host = network.hosts[network.packets[slot].target]
    host.down_head = network.packets[slot].next
    if host.down_head != NOTHING:
        _start_receiving(network, host.down_head)
