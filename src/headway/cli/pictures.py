"""Small pictures in the terminal."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rich.table import Table

from headway.lab import Scenario
from headway.units import format_duration, format_rate

_BARS = "▁▂▃▄▅▆▇█"
_WIDTH = 24


def sparkline(values: Sequence[float]) -> str:
    """Return bars for positive values, on a log scale.

    >>> sparkline([1, 10, 100])
    '▁▅█'
    """
    logs = [math.log10(max(value, 1e-9)) for value in values]
    low, span = min(logs), (max(logs) - min(logs)) or 1.0
    return "".join(_BARS[round((log - low) / span * (len(_BARS) - 1))] for log in logs)


def scenario_table(scenarios: Sequence[Scenario]) -> Table:
    """Return a table of scenarios, with their default link over time."""
    table = Table("scenario", "latency", "bandwidth", "what it is", show_lines=True)
    for scenario in scenarios:
        moments = _moments(scenario)
        latencies = [_value(scenario, moment, "latency_s", 0.0) for moment in moments]
        rates = [_value(scenario, moment, "bandwidth_bps", math.inf) for moment in moments]
        if not scenario.link.bandwidth_bps and scenario.hosts:
            rates = [max(rule.down_bps or 0.0 for rule in scenario.hosts)] * len(moments)
        table.add_row(
            scenario.name,
            f"{sparkline(latencies)}\n{_span(latencies, format_duration)}",
            f"{sparkline(rates)}\n{_span(rates, format_rate)}",
            scenario.description,
        )
    return table


def _moments(scenario: Scenario) -> list[float]:
    """Return times spread over the scenario, a little past its last change."""
    last = max((phase.start.at_s or 0.0 for phase in scenario.phases), default=0.0)
    ends = [phase.end.at_s or 0.0 for phase in scenario.phases if phase.end is not None]
    span = max([last, *ends]) * (1 + 1 / max(len(scenario.phases), 1)) or 1.0
    return [span * (i + 0.5) / _WIDTH for i in range(_WIDTH)]


def _value(scenario: Scenario, moment: float, name: str, default: float) -> float:
    number = scenario.phase_at(moment, None)
    links = [scenario.link] if number is None else [scenario.phases[number].link, scenario.link]
    return next((value for link in links if (value := getattr(link, name)) is not None), default)


def _span(values: Sequence[float], show: object) -> str:
    assert callable(show)
    low, high = show(min(values)), show(max(values))
    return str(low) if low == high else f"{low} to {high}"
