"""What the emulated network is like, and how it changes: plain data, checked when it is made.

A scenario is a default link, rules for hosts and pairs that override it, phases that override those from a time or a
step on, and events that hit single ranks. ``toml`` reads one from a file.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, get_args

EventKind = Literal["cut", "kill", "freeze"]
EVENT_KINDS: tuple[EventKind, ...] = get_args(EventKind)

RankGroup = Literal["all", "first half", "second half"]
RANK_GROUPS: tuple[RankGroup, ...] = get_args(RankGroup)
Ranks = tuple[int, ...] | RankGroup
"""Ranks by number, or a group of them that exists for any number of hosts."""


def resolve_ranks(ranks: Ranks, num_hosts: int) -> list[int]:
    """Return the numbers.

    >>> resolve_ranks("first half", 5), resolve_ranks("second half", 5)
    ([0, 1], [2, 3, 4])
    """
    if ranks == "all":
        return list(range(num_hosts))
    if ranks == "first half":
        return list(range(num_hosts // 2))
    if ranks == "second half":
        return list(range(num_hosts // 2, num_hosts))
    return [rank for rank in ranks if isinstance(rank, int)]


@dataclass(frozen=True, kw_only=True)
class Link:
    """What a rule says of a link, one way; None leaves it as it was."""

    latency_s: float | None = None
    bandwidth_bps: float | None = None
    jitter_s: float | None = None
    """A packet's delay is uniform in latency ± jitter; order within a pair is kept."""
    loss: float | None = None

    def __post_init__(self) -> None:
        for name in ("latency_s", "jitter_s"):
            _check(name, getattr(self, name), lambda value: 0 <= value <= 60, "between 0 and 60 s")
        _check("bandwidth_bps", self.bandwidth_bps, lambda value: value >= 1000, "at least 1 kbps")
        _check("loss", self.loss, lambda value: 0 <= value < 1, "at least 0 and less than 1")


@dataclass(frozen=True, kw_only=True)
class HostRule:
    """The line of some hosts: rates of their NIC each way, and latency that comes on top, each way."""

    ranks: Ranks
    up_bps: float | None = None
    down_bps: float | None = None
    access_latency_s: float | None = None

    def __post_init__(self) -> None:
        for name in ("up_bps", "down_bps"):
            _check(name, getattr(self, name), lambda value: value >= 1000, "at least 1 kbps")
        _check("access_latency_s", self.access_latency_s, lambda value: 0 <= value <= 60, "between 0 and 60 s")


@dataclass(frozen=True, kw_only=True)
class PairRule:
    """The link from each source to each target; its bandwidth is that of the pair, beside those of the two NICs."""

    sources: Ranks
    targets: Ranks
    link: Link


@dataclass(frozen=True, kw_only=True)
class When:
    """A time since the start, a step, or both: the step counts once the script has announced one."""

    at_s: float | None = None
    at_step: int | None = None

    def __post_init__(self) -> None:
        if self.at_s is None and self.at_step is None:
            raise ValueError("needs a time or a step")
        _check("at_s", self.at_s, lambda value: value >= 0, "not negative")
        _check("at_step", self.at_step, lambda value: value >= 0, "not negative")

    def has_come(self, elapsed_s: float, step: int | None) -> bool:
        """Return whether this is past."""
        if step is not None and self.at_step is not None:
            return step >= self.at_step
        return self.at_s is not None and elapsed_s >= self.at_s

    def by_step(self) -> When:
        """Return the same by its step alone, if it has one; step 0 has come before the script announces it."""
        return self if self.at_step is None else When(at_s=None if self.at_step else 0.0, at_step=self.at_step)

    def stretched(self, factor: float) -> When:
        """Return the same, later by a factor."""
        return When(
            at_s=None if self.at_s is None else self.at_s * factor,
            at_step=None if self.at_step is None else round(self.at_step * factor),
        )


@dataclass(frozen=True, kw_only=True)
class Phase:
    """Rules in force from ``start`` until ``end``, or until the next phase starts."""

    start: When
    end: When | None = None
    link: Link = field(default_factory=Link)
    hosts: tuple[HostRule, ...] = ()
    pairs: tuple[PairRule, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Event:
    """Something that happens to ranks: ``cut`` off the network, ``freeze`` (SIGSTOP), or ``kill`` (SIGKILL)."""

    kind: EventKind
    ranks: Ranks
    start: When
    duration_s: float | None = None

    def __post_init__(self) -> None:
        if self.kind not in EVENT_KINDS:
            raise ValueError(f"kind is {self.kind!r}, but must be one of {', '.join(EVENT_KINDS)}")
        if (self.kind == "kill") != (self.duration_s is None):
            raise ValueError(f"a {self.kind} {'is for good' if self.kind == 'kill' else 'needs a duration'}")
        _check("duration_s", self.duration_s, lambda value: value > 0, "more than 0")


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """A network and all that will happen to it."""

    name: str = "custom"
    source: str = ""
    """The file it was read from, for messages."""
    description: str = ""
    link: Link = field(default_factory=Link)
    hosts: tuple[HostRule, ...] = ()
    pairs: tuple[PairRule, ...] = ()
    phases: tuple[Phase, ...] = ()
    events: tuple[Event, ...] = ()

    def __post_init__(self) -> None:
        _check_order("s", [(_at_s(phase.start), _at_s(phase.end)) for phase in self.phases])
        _check_order("steps", [(_at_step(phase.start), _at_step(phase.end)) for phase in self.phases])

    def check_ranks(self, num_hosts: int) -> None:
        """Raise if a rule or an event names a rank that there is not."""
        for what, ranks in self._named_ranks():
            for rank in resolve_ranks(ranks, num_hosts):
                if not 0 <= rank < num_hosts:
                    raise ValueError(
                        f"{self.source or self.name}: {what}: rank {rank} is out of range, "
                        f"the ranks are 0 to {num_hosts - 1}"
                    )

    def _named_ranks(self) -> Iterable[tuple[str, Ranks]]:
        places: list[tuple[str, Scenario | Phase]] = [("", self)]
        places += [(f"phases[{number}].", phase) for number, phase in enumerate(self.phases)]
        for place, rules in places:
            for number, host in enumerate(rules.hosts):
                yield f"{place}hosts[{number}].ranks", host.ranks
            for number, pair in enumerate(rules.pairs):
                yield f"{place}pairs[{number}]", pair.sources
                yield f"{place}pairs[{number}]", pair.targets
        for number, event in enumerate(self.events):
            yield f"events[{number}].ranks", event.ranks

    def phase_at(self, elapsed_s: float, step: int | None) -> int | None:
        """Return the number of the phase in force, or None before the first and in gaps."""
        for number in range(len(self.phases) - 1, -1, -1):
            phase = self.phases[number]
            if phase.start.has_come(elapsed_s, step):
                return None if phase.end is not None and phase.end.has_come(elapsed_s, step) else number
        return None

    def by_steps(self) -> Scenario:
        """Return the same without times where there are steps: for scripts that announce their steps.

        While they start, which takes as long as it takes, the clock would run ahead of them through the phases.
        """
        phases = tuple(replace(each, start=each.start.by_step(), end=_by_step(each.end)) for each in self.phases)
        events = tuple(replace(each, start=each.start.by_step()) for each in self.events)
        return replace(self, phases=phases, events=events)

    def scaled(self, *, bandwidth: float = 1.0, time: float = 1.0) -> Scenario:
        """Return the same with every bandwidth, and every time and step, multiplied by a factor."""
        for name, factor in (("bandwidth", bandwidth), ("time", time)):
            if not (math.isfinite(factor) and factor > 0):
                raise ValueError(f"the factor of {name} is {factor}, but must be positive")

        def link(rule: Link) -> Link:
            return replace(rule, bandwidth_bps=_times(rule.bandwidth_bps, bandwidth))

        def hosts(rules: Sequence[HostRule]) -> tuple[HostRule, ...]:
            return tuple(
                replace(rule, up_bps=_times(rule.up_bps, bandwidth), down_bps=_times(rule.down_bps, bandwidth))
                for rule in rules
            )

        def pairs(rules: Sequence[PairRule]) -> tuple[PairRule, ...]:
            return tuple(replace(rule, link=link(rule.link)) for rule in rules)

        phases = tuple(
            Phase(
                start=phase.start.stretched(time),
                end=None if phase.end is None else phase.end.stretched(time),
                link=link(phase.link),
                hosts=hosts(phase.hosts),
                pairs=pairs(phase.pairs),
            )
            for phase in self.phases
        )
        events = tuple(
            replace(event, start=event.start.stretched(time), duration_s=_times(event.duration_s, time))
            for event in self.events
        )
        return replace(
            self, link=link(self.link), hosts=hosts(self.hosts), pairs=pairs(self.pairs), phases=phases, events=events
        )


def _by_step(when: When | None) -> When | None:
    return None if when is None else when.by_step()


def _at_s(when: When | None) -> float | None:
    return None if when is None else when.at_s


def _at_step(when: When | None) -> int | None:
    return None if when is None else when.at_step


def _check_order(unit: str, spans: Sequence[tuple[float | None, float | None]]) -> None:
    """Raise unless spans (start, end) follow each other, as far as they are given in this unit."""
    previous: tuple[int, float, float | None] | None = None
    for number, (start, end) in enumerate(spans):
        if end is not None and (start is None or end <= start):
            raise ValueError(f"phase {number} ends at {end:g} {unit}, but does not start before that")
        if start is None:
            continue
        if previous is not None:
            other, other_start, other_end = previous
            if start <= other_start or (other_end is not None and start < other_end):
                first = f"starts at {other_start:g}" if other_end is None else f"ends at {other_end:g}"
                raise ValueError(
                    f"phases {other} and {number} overlap: the first {first} {unit}, "
                    f"the second starts at {start:g} {unit}"
                )
        previous = (number, start, end)


def _times(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor


def _check(name: str, value: float | None, holds: Callable[[float], bool], limit: str) -> None:
    if value is not None and not (math.isfinite(value) and holds(value)):
        raise ValueError(f"{name} is {value:g}, but must be {limit}")
