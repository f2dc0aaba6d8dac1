"""Figures of the runs of ``benchmarks/adaptive.py``: times, accuracies on the way, and time to an accuracy."""

from __future__ import annotations

import statistics
from typing import Any

ENOUGH = 0.84
"""The accuracy whose time is told beside that of DDP's own."""
NUM_SETTLING = 10
EVERY = 8
"""Steps between looks at the accuracy."""

Run = dict[str, Any]


def total_s(run: Run) -> float:
    """Return the seconds of all steps."""
    return sum(step["seconds"] for step in run["steps"])


def smoothed(run: Run) -> list[float]:
    """Return accuracies, each the mean of three."""
    seen = run["accuracies"]
    return [statistics.fmean(seen[max(0, i - 2) : i + 1]) for i in range(len(seen))]


def time_to(run: Run, target: float) -> float | None:
    """Return the seconds until an accuracy was reached; None if it never was."""
    for number, accuracy in enumerate(smoothed(run), 1):
        if accuracy >= target:
            return sum(step["seconds"] for step in run["steps"][: number * EVERY])
    return None


def settled_s(run: Run, starts: list[int]) -> list[float]:
    """Return the median step of each phase, without its first ten."""
    ends = [*starts[1:], len(run["steps"])]
    return [
        statistics.median(step["seconds"] for step in run["steps"][start + NUM_SETTLING : end])
        for start, end in zip(starts, ends, strict=True)
    ]
