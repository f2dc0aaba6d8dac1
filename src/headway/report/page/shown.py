"""The runs of a page: what each is called, and how it looks in every plot."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from headway.report.page.thinning import Curve, thin
from headway.report.page.words import plot_name
from headway.report.run import Run
from headway.tuner import EXCHANGE_NAMES

BASELINE = "ddp"
NUM_COLOURS = 7
"""That the style sheet has for runs, beside the baseline's."""
_DASHES = ("solid", "dash", "dot", "dashdot")

_EXCHANGES = tuple(EXCHANGE_NAMES.values())
_NUM_OTHERS = 3
"""Colours of the style sheet for what is no exchange of ours."""
_SYMBOLS = ("circle", "square", "diamond", "triangle-up", "triangle-down", "cross", "x", "pentagon", "hexagon")


@dataclass(frozen=True, kw_only=True)
class Shown:
    """A run, with what makes it the same one in all plots."""

    run: Run
    label: str
    """Unlike that of any other run on the page."""
    plot_name: str
    """The label for plots, which have little room: also unlike any other."""
    colour: str
    """A variable of the style sheet, which knows light and dark."""
    dash: str
    curve: Curve


def show(runs: Sequence[Run]) -> list[Shown]:
    """Give each run a name and a colour; a run of plain DDP is grey, so that all others stand out against it."""
    shown: list[Shown] = []
    num_coloured = 0
    names = labels(runs)
    short = numbered([plot_name(name) for name in names])
    for run, label, plotted in zip(runs, names, short, strict=True):
        colour, dash = "var(--run-base)", "solid"
        if run.start.get("method") != BASELINE or len(runs) == 1:
            colour = f"var(--run-{num_coloured % NUM_COLOURS})"
            dash = _DASHES[num_coloured // NUM_COLOURS % len(_DASHES)]
            num_coloured += 1
        look = {"label": label, "plot_name": plotted, "colour": colour, "dash": dash}
        shown.append(Shown(run=run, curve=thin(run.steps), **look))
    return shown


def labels(runs: Sequence[Run]) -> list[str]:
    """Return a name for each run; those of one method are told apart by their folders, and then by number."""
    names = [run.name for run in runs]
    counts = Counter(names)
    longer = [
        name if counts[name] == 1 else f"{name}, {run.folder.resolve().name}"
        for name, run in zip(names, runs, strict=True)
    ]
    return numbered(longer)


def numbered(names: Sequence[str]) -> list[str]:
    """Return names with their place behind those that are not the only one.

    >>> numbered(["a", "b", "a"])
    ['a, 1', 'b', 'a, 3']
    """
    counts = Counter(names)
    return [name if counts[name] == 1 else f"{name}, {place}" for place, name in enumerate(names, start=1)]


def exchange_of(plan: str) -> str:
    """Return the exchange of a plan in words; what is no plan of ours, such as gossip, is one by itself.

    >>> exchange_of("STAR top-k halving-doubling 0.9%"), exchange_of("choco 4 bits on a ring")
    ('STAR top-k', 'choco 4 bits on a ring')
    """
    return next((name for name in _EXCHANGES if plan.startswith(f"{name} ")), plan or "not known")


def exchange_colour(exchange: str) -> str:
    """Return the colour of an exchange: a variable of the style sheet. What plain DDP sends is dense."""
    if exchange in _EXCHANGES:
        return f"var(--exchange-{_EXCHANGES.index(exchange)})"
    if "ddp" in exchange.lower():
        return "var(--exchange-0)"
    return f"var(--other-{zlib.crc32(exchange.encode()) % _NUM_OTHERS})"


def exchange_symbol(exchange: str) -> str:
    """Return the marker of an exchange, for those who do not see its colour."""
    return _SYMBOLS[_EXCHANGES.index(exchange) if exchange in _EXCHANGES else -1]
