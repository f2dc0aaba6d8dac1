"""Runs side by side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.box import SIMPLE_HEAD
from rich.table import Table

from headway.units import format_bytes, format_clock, format_duration

if TYPE_CHECKING:
    from headway.report import Summary


def summary_table(rows: Sequence[Summary]) -> Table:
    """Return a table of runs, a row each; what is not known is left empty."""
    table = Table(
        "method", "time", "a step", "faster", "sent", "saved", "accuracy", "switches", box=SIMPLE_HEAD, pad_edge=False
    )
    table.columns[0].no_wrap = True
    for column in table.columns[1:]:
        column.justify = "right"
        column.no_wrap = True
    for row in rows:
        table.add_row(
            row.name,
            format_clock(row.time_s),
            "" if row.mean_step_s is None else format_duration(row.mean_step_s),
            "" if row.speedup is None else f"{row.speedup:.1f}x",
            format_bytes(row.wire_bytes),
            "" if row.saved is None else f"{row.saved:.1%}",
            "" if row.accuracy is None else f"{row.accuracy:.1%}",
            str(row.num_switches),
        )
    return table
