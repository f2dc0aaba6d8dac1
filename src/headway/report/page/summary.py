"""A summary of each run, with its speed-up over the baseline."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from headway.exchange import saved_share
from headway.report.page.figures import known, number
from headway.report.page.styled_runs import BASELINE, labels
from headway.report.page.thinning import known_of
from headway.report.run import Run, is_switch

_LAST_STEPS = 10
"""The last loss is a mean over this number of steps, since that of a single step is noisy."""


@dataclass(frozen=True, kw_only=True)
class Summary:
    """Time, traffic and results of a run; None is unknown."""

    name: str
    folder: str
    status: str
    """finished, stopped or failed; or running, which includes a run that was killed."""
    num_steps: int
    time_s: float
    mean_step_s: float | None
    median_step_s: float | None
    wire_bytes: int
    """What rank 0 sent."""
    saved: float | None
    """The share of dense traffic that was not sent."""
    loss: float | None
    """The mean training loss of the last steps."""
    accuracy: float | None
    """The accuracy at the last evaluation."""
    num_decisions: int
    num_switches: int
    is_baseline: bool = False
    speedup: float | None = None
    """The baseline's mean step time over that of this run; None without another run."""
    target_accuracy: float | None = None
    """The highest accuracy that all runs with evaluations reached."""
    time_to_target_s: float | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return the summary as plain data."""
        return asdict(self)


def summarise(runs: Sequence[Run]) -> list[Summary]:
    """Return a summary of each run; the baseline is plain DDP, or else the slowest run."""
    rows = [_row(run, name) for run, name in zip(runs, labels(runs), strict=True)]
    timed = [place for place, row in enumerate(rows) if row.mean_step_s]
    if len(timed) < 2:
        return rows
    base = _baseline(runs, rows, timed)
    target = _target(runs)
    return [
        replace(
            row,
            is_baseline=place == base,
            speedup=_ratio(rows[base].mean_step_s, row.mean_step_s),
            target_accuracy=target,
            time_to_target_s=_reached_s(run, target),
        )
        for place, (run, row) in enumerate(zip(runs, rows, strict=True))
    ]


def _row(run: Run, name: str) -> Summary:
    steps_s = known_of(run.steps, "step_s")
    wire_bytes, dense_bytes = (sum(known_of(run.steps, field)) for field in ("wire_bytes", "dense_bytes"))
    losses = known_of(run.steps[-_LAST_STEPS:], "loss")
    return Summary(
        name=name,
        folder=str(run.folder),
        status="running" if run.end is None else str(run.end.get("reason")),
        num_steps=len(run.steps),
        time_s=run.time_s,
        mean_step_s=_ratio(math.fsum(steps_s), len(steps_s)),
        median_step_s=statistics.median(steps_s) if steps_s else None,
        wire_bytes=int(wire_bytes),
        saved=saved_share(wire_bytes, dense_bytes) if dense_bytes else None,
        loss=statistics.fmean(losses) if losses else None,
        accuracy=run.accuracy,
        num_decisions=len(run.decisions),
        num_switches=sum(map(is_switch, run.decisions)),
    )


def _baseline(runs: Sequence[Run], rows: Sequence[Summary], timed: Sequence[int]) -> int:
    plain = [place for place in timed if runs[place].start.get("method") == BASELINE]
    return plain[0] if plain else max(timed, key=lambda place: rows[place].mean_step_s or 0.0)


def _ratio(one: float | None, other: float | None) -> float | None:
    return one / other if one and other else None


def _target(runs: Sequence[Run]) -> float | None:
    """Return the highest accuracy that all runs with evaluations reached, if there are at least two."""
    best = [max(accuracies) for run in runs if (accuracies := _accuracies(run))]
    return min(best) if len(best) > 1 else None


def _accuracies(run: Run) -> list[float]:
    return known(number(evaluation.get("accuracy")) for evaluation in run.evaluations)


def _reached_s(run: Run, target: float | None) -> float | None:
    if target is None:
        return None
    reached = (each for each in run.evaluations if (number(each.get("accuracy")) or 0.0) >= target)
    return next((float(each["time_s"]) for each in reached), None)
