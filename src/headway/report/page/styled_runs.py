"""The runs of a page, each with the name, colour and curve that it has in all plots."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from headway.report.page.figures import plot_name
from headway.report.page.thinning import Curve, thin
from headway.report.run import Run

BASELINE = "ddp"
NUM_COLOURS = 7
"""The number of colours for runs in the style sheet, not counting the baseline's."""
_DASHES = ("solid", "dash", "dot", "dashdot")


@dataclass(frozen=True, kw_only=True)
class StyledRun:
    """The record of a run, and its style."""

    record: Run
    label: str
    """Unique on the page."""
    plot_name: str
    """A short label for plots, also unique."""
    colour: str
    """A variable of the style sheet, which differs in light and dark."""
    dash: str
    curve: Curve


def style_runs(runs: Sequence[Run]) -> list[StyledRun]:
    """Give each run a name and a colour; plain DDP is grey, so that other runs stand out."""
    styled: list[StyledRun] = []
    num_coloured = 0
    names = labels(runs)
    short = numbered([plot_name(name) for name in names])
    for run, label, short_label in zip(runs, names, short, strict=True):
        colour, dash = "var(--run-base)", "solid"
        if run.start.get("method") != BASELINE or len(runs) == 1:
            colour = f"var(--run-{num_coloured % NUM_COLOURS})"
            dash = _DASHES[num_coloured // NUM_COLOURS % len(_DASHES)]
            num_coloured += 1
        style = {"label": label, "plot_name": short_label, "colour": colour, "dash": dash}
        styled.append(StyledRun(record=run, curve=thin(run.steps), **style))
    return styled


def labels(runs: Sequence[Run]) -> list[str]:
    """Return a unique name for each run: its own, if need be with its folder, if need be with a number."""
    names = [run.name for run in runs]
    counts = Counter(names)
    longer = [
        name if counts[name] == 1 else f"{name}, {run.folder.resolve().name}"
        for name, run in zip(names, runs, strict=True)
    ]
    return numbered(longer)


def numbered(names: Sequence[str]) -> list[str]:
    """Return names made unique by their position.

    >>> numbered(["a", "b", "a"])
    ['a, 1', 'b', 'a, 3']
    """
    counts = Counter(names)
    return [name if counts[name] == 1 else f"{name}, {place}" for place, name in enumerate(names, start=1)]
