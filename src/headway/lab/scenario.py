"""The emulated network and how it changes: plain data, validated when created.

A scenario is a default link, rules for hosts and pairs that override it, phases that override those from a time or a
step on, and events that affect single ranks. `toml` reads one from a file.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, is_dataclass, replace
from typing import Any, Literal, TypeVar, get_args

T = TypeVar("T")

EventKind = Literal["cut", "kill", "freeze"]
EVENT_KINDS: tuple[EventKind, ...] = get_args(EventKind)

RankGroup = Literal["all", "first half", "second half"]
RANK_GROUPS: tuple[RankGroup, ...] = get_args(RankGroup)
Ranks = tuple[int, ...] | RankGroup
"""Ranks by number, or a group that is defined for any number of hosts."""


def resolve_ranks(ranks: Ranks, num_hosts: int) -> list[int]:
    """Return the ranks by number.

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
class LinkSpec:
    """A one-way link to emulate, or a rule for one; None leaves a property unchanged."""

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
    """The access line of some hosts: bandwidth of the NIC in each direction, and additional latency each way."""

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
    """The link from each source to each target; its bandwidth limits the pair, in addition to the two NICs."""

    sources: Ranks
    targets: Ranks
    link: LinkSpec


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
        """Return whether it has been reached."""
        if step is not None and self.at_step is not None:
            return step >= self.at_step
        return self.at_s is not None and elapsed_s >= self.at_s

    def by_step(self) -> When:
        """Return the same by its step only, if it has one; step 0 counts as reached before the script announces it."""
        return self if self.at_step is None else When(at_s=None if self.at_step else 0.0, at_step=self.at_step)


@dataclass(frozen=True, kw_only=True)
class Phase:
    """Rules in force from ``start`` until ``end``, or until the next phase starts."""

    start: When
    end: When | None = None
    link: LinkSpec = field(default_factory=LinkSpec)
    hosts: tuple[HostRule, ...] = ()
    pairs: tuple[PairRule, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Event:
    """An event that affects ranks: ``cut`` off the network, ``freeze`` (SIGSTOP), or ``kill`` (SIGKILL)."""

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
    """A network, and how it changes."""

    name: str = "custom"
    source: str = ""
    """The file it was read from, for messages."""
    description: str = ""
    link: LinkSpec = field(default_factory=LinkSpec)
    hosts: tuple[HostRule, ...] = ()
    pairs: tuple[PairRule, ...] = ()
    phases: tuple[Phase, ...] = ()
    events: tuple[Event, ...] = ()

    def __post_init__(self) -> None:
        _check_order("s", [(_at_s(phase.start), _at_s(phase.end)) for phase in self.phases])
        _check_order("steps", [(_at_step(phase.start), _at_step(phase.end)) for phase in self.phases])

    def check_ranks(self, num_hosts: int) -> None:
        """Raise if a rule or an event names a rank that does not exist."""
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
        """Return the same without times where there are steps, for scripts that announce their steps.

        Otherwise phases would pass by the clock while a script starts, however long that takes.
        """
        phases = tuple(replace(each, start=each.start.by_step(), end=_by_step(each.end)) for each in self.phases)
        events = tuple(replace(each, start=each.start.by_step()) for each in self.events)
        return replace(self, phases=phases, events=events)

    def scaled(self, *, bandwidth: float = 1.0, time: float = 1.0) -> Scenario:
        """Return the same with every bandwidth, and every time and step, multiplied by a factor."""
        for name, factor in (("bandwidth", bandwidth), ("time", time)):
            if not (math.isfinite(factor) and factor > 0):
                raise ValueError(f"the factor of {name} is {factor}, but must be positive")
        return _scaled(self, bandwidth, time)


def _scaled(value: T, bandwidth: float, time: float) -> T:
    """Multiply the bandwidths and times in a rule, and in all that it contains."""
    if isinstance(value, tuple):
        return tuple(_scaled(each, bandwidth, time) for each in value)  # type: ignore[return-value]
    if not is_dataclass(value) or isinstance(value, type):
        return value
    scaled: dict[str, Any] = {}
    for name, old in vars(value).items():
        if old is None or not (name.endswith("_bps") or name in ("at_s", "at_step", "duration_s")):
            scaled[name] = _scaled(old, bandwidth, time)
        elif name == "at_step":
            scaled[name] = round(old * time)
        else:
            scaled[name] = old * (bandwidth if name.endswith("_bps") else time)
    return replace(value, **scaled)


def _by_step(when: When | None) -> When | None:
    return None if when is None else when.by_step()


def _at_s(when: When | None) -> float | None:
    return None if when is None else when.at_s


def _at_step(when: When | None) -> int | None:
    return None if when is None else when.at_step


def _check_order(unit: str, spans: Sequence[tuple[float | None, float | None]]) -> None:
    """Raise unless the spans (start, end) given in this unit follow each other."""
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


def _check(name: str, value: float | None, holds: Callable[[float], bool], limit: str) -> None:
    if value is not None and not (math.isfinite(value) and holds(value)):
        raise ValueError(f"{name} is {value:g}, but must be {limit}")
