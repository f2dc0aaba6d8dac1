"""What happens next: a binary heap of events, ordered by time and, at the same time, by when they were scheduled."""

from __future__ import annotations

from typing import Any

from headway._compile import compiled


@compiled
def _before(a: Any, b: Any) -> bool:
    return bool(a.time_s < b.time_s or (a.time_s == b.time_s and a.order < b.order))


@compiled
def _swap(events: Any, i: int, j: int) -> None:
    time_s, order, subject = events[i].time_s, events[i].order, events[i].subject
    events[i].time_s, events[i].order, events[i].subject = events[j].time_s, events[j].order, events[j].subject
    events[j].time_s, events[j].order, events[j].subject = time_s, order, subject


@compiled
def schedule(network: Any, time_s: float, subject: int) -> None:
    """Add an event."""
    events, control = network.events, network.control[0]
    child = control.num_events
    events[child].time_s, events[child].order, events[child].subject = time_s, control.num_scheduled, subject
    control.num_events += 1
    control.num_scheduled += 1
    while child > 0 and _before(events[child], events[(child - 1) // 2]):
        _swap(events, child, (child - 1) // 2)
        child = (child - 1) // 2


@compiled
def pop(network: Any) -> int:
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
