"""Reads scenarios from TOML (the format: docs/lab.md). Every mistake is reported with file, key and value."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import resources
from pathlib import Path
from typing import Any, TypeVar

from headway.lab.scenario import (
    EVENT_KINDS,
    RANK_GROUPS,
    Event,
    HostRule,
    LinkSpec,
    PairRule,
    Phase,
    RankGroup,
    Ranks,
    Scenario,
    When,
)
from headway.units import parse_duration_s, parse_rate_bps, parse_share

T = TypeVar("T")

_PRESETS = resources.files("headway.lab") / "presets"


class ScenarioError(ValueError):
    """A scenario file is wrong; the message names file, key and value."""


def preset_names() -> list[str]:
    """Return the names of the scenarios that come with Headway."""
    return sorted(entry.name.removesuffix(".toml") for entry in _PRESETS.iterdir() if entry.name.endswith(".toml"))


def load_scenario(name_or_path: str | Path) -> Scenario:
    """Return a preset by its name, or the scenario in a file.

    >>> load_scenario("wan").link.latency_s
    0.02
    """
    if str(name_or_path) in preset_names():
        return parse_scenario((_PRESETS / f"{name_or_path}.toml").read_text("utf-8"), str(name_or_path))
    path = Path(name_or_path)
    if not path.exists() or path.is_dir():
        raise ScenarioError(
            f"{name_or_path} is neither a file nor a preset; the presets are {', '.join(preset_names())}"
        )
    try:
        return parse_scenario(path.read_text("utf-8-sig"), path.stem, str(path))
    except UnicodeDecodeError as error:
        raise ScenarioError(f"{path}: not UTF-8 text: {error}") from None
    except OSError as error:
        raise ScenarioError(f"{path}: cannot be read: {error.strerror}") from None


def _read_toml(text: str, file: str) -> dict[str, Any]:
    """Parse TOML with tomllib, or on Python 3.10 with tomli, which only the lab needs."""
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        try:
            import tomli as tomllib
        except ImportError:
            raise ScenarioError("scenarios need tomli on Python 3.10: pip install 'headway[lab]'") from None
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ScenarioError(f"{file}: not TOML: {error}") from None


def parse_scenario(text: str, name: str, file: str | None = None) -> Scenario:
    """Return the scenario of a TOML text; ``file`` is its name in messages."""
    file = file or name
    table = _Table(file, "", _read_toml(text, file))
    root_link = table.take("link", lambda value: _link(_Table(file, "link", value)))
    description = table.take("description", _string) or ""
    hosts = tuple(table.take_tables("hosts", _host))
    pairs = tuple(rule for rules in table.take_tables("pairs", _pair) for rule in rules)
    phases = tuple(table.take_tables("phases", _phase))
    events = tuple(table.take_tables("events", _event))
    table.finish()
    return table.build(
        Scenario,
        name=name,
        source=file,
        description=description,
        link=root_link or LinkSpec(),
        hosts=hosts,
        pairs=pairs,
        phases=phases,
        events=events,
    )


class _Table:
    """A TOML table that knows its place in the file, and which of its keys have not been read."""

    def __init__(self, file: str, place: str, values: Any) -> None:
        self._file, self._place = file, place
        if not isinstance(values, dict):
            raise ScenarioError(f"{file}: {place}: {values!r} is not a table")
        self._values = dict(values)

    def take(self, key: str, parse: Callable[[Any], T]) -> T | None:
        """Return the parsed value of a key, or None if it is missing."""
        if key not in self._values:
            return None
        value = self._values.pop(key)
        try:
            return parse(value)
        except ScenarioError:
            raise
        except (ValueError, TypeError) as error:
            raise ScenarioError(f"{self._file}: {self._path(key)}: {error}") from None

    def take_tables(self, key: str, parse: Callable[[_Table], T]) -> list[T]:
        """Return the parsed tables of an array of tables."""
        values = self._values.pop(key, [])
        if not isinstance(values, list):
            raise ScenarioError(f"{self._file}: {self._path(key)}: must be an array of tables, [[{key}]]")
        tables = [_Table(self._file, f"{self._path(key)}[{number}]", value) for number, value in enumerate(values)]
        return [parse(table) for table in tables]

    def build(self, make: Callable[..., T], /, **fields: Any) -> T:
        """Return an object; a ValueError is reported with the place of this table."""
        try:
            return make(**fields)
        except ValueError as error:
            raise self.error(str(error)) from None

    def error(self, message: str) -> ScenarioError:
        """Return an error with the place of this table."""
        return ScenarioError(f"{self._file}: {self._place + ': ' if self._place else ''}{message}")

    def finish(self) -> None:
        """Raise if a key has not been read."""
        for key, value in self._values.items():
            raise ScenarioError(f"{self._file}: {self._path(key)}: unknown key (its value is {value!r})")

    def _path(self, key: str) -> str:
        return f"{self._place}.{key}" if self._place else key


def _string(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is not a string")
    return value


def _bool(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"{value!r} is neither true nor false")
    return value


def _duration_s(value: Any) -> float:
    return parse_duration_s(_quoted(value, "20ms"))


def _rate_bps(value: Any) -> float:
    return parse_rate_bps(_quoted(value, "100mbps"))


def _share(value: Any) -> float:
    return parse_share(str(value))


def _quoted(value: Any, example: str) -> str:
    if not isinstance(value, str):
        raise ValueError(f'{value!r} has no unit: write it as in "{example}"')
    return value


def _step(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or abs(value) > 10**15:
        raise ValueError(f"{value!r} is not a step number")
    return value


def _ranks(value: Any) -> Ranks:
    if value in RANK_GROUPS:
        group: RankGroup = value
        return group
    ranks = value if isinstance(value, list) else [value]
    if not ranks or any(not isinstance(rank, int) or isinstance(rank, bool) for rank in ranks):
        raise ValueError(f"{value!r} is not a rank, a list of ranks, or one of {', '.join(RANK_GROUPS)}")
    return tuple(ranks)


def _link(table: _Table) -> LinkSpec:
    """Read the rest of a table as a link."""
    fields = {
        "latency_s": table.take("latency", _duration_s),
        "bandwidth_bps": table.take("bandwidth", _rate_bps),
        "jitter_s": table.take("jitter", _duration_s),
        "loss": table.take("loss", _share),
    }
    table.finish()
    return table.build(LinkSpec, **fields)


def _host(table: _Table) -> HostRule:
    ranks = table.take("ranks", _ranks) or table.take("rank", _ranks)
    both = table.take("bandwidth", _rate_bps)
    up, down = table.take("up", _rate_bps), table.take("down", _rate_bps)
    up, down = both if up is None else up, both if down is None else down
    access = table.take("access_latency", _duration_s)
    table.finish()
    if ranks is None:
        raise table.error("rank or ranks is missing")
    return table.build(HostRule, ranks=ranks, up_bps=up, down_bps=down, access_latency_s=access)


def _pair(table: _Table) -> list[PairRule]:
    sources, targets = table.take("from", _ranks), table.take("to", _ranks)
    one_way = table.take("one_way", _bool) or False
    link = _link(table)
    if sources is None or targets is None:
        raise table.error("from or to is missing")
    rule = PairRule(sources=sources, targets=targets, link=link)
    return [rule] if one_way else [rule, PairRule(sources=targets, targets=sources, link=link)]


def _when(table: _Table, time_key: str, step_key: str) -> When | None:
    at_s, at_step = table.take(time_key, _duration_s), table.take(step_key, _step)
    return None if at_s is None and at_step is None else table.build(When, at_s=at_s, at_step=at_step)


def _phase(table: _Table) -> Phase:
    start, end = _when(table, "at", "at_step"), _when(table, "until", "until_step")
    hosts = tuple(table.take_tables("hosts", _host))
    pairs = tuple(rule for rules in table.take_tables("pairs", _pair) for rule in rules)
    link = _link(table)
    if start is None:
        raise table.error("at or at_step is missing")
    return table.build(Phase, start=start, end=end, link=link, hosts=hosts, pairs=pairs)


def _event(table: _Table) -> Event:
    named = [(kind, ranks) for kind in EVENT_KINDS if (ranks := table.take(kind, _ranks)) is not None]
    start, duration_s = _when(table, "at", "at_step"), table.take("for", _duration_s)
    table.finish()
    if len(named) != 1:
        raise table.error(f"needs exactly one of {', '.join(EVENT_KINDS)}")
    if start is None:
        raise table.error("at or at_step is missing")
    kind, ranks = named[0]
    return table.build(Event, kind=kind, ranks=ranks, start=start, duration_s=duration_s)
