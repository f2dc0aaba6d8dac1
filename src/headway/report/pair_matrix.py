"""Latency and bandwidth between all pairs of ranks, drawn as two matrices."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from headway.network import PairMatrix
from headway.units import format_duration, format_rate

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MOST_LABELLED = 16
"""With more ranks, numbers would be too small to read."""


def draw_pair_matrix(matrix: PairMatrix, output: Path) -> None:
    """Draw latency and bandwidth from rank (row) to rank (column). Needs ``pip install headway[plot]``."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    side = max(3.2, 0.62 * len(matrix.latency_s))
    figure, (left, right) = plt.subplots(1, 2, figsize=(2 * side + 1.4, side + 0.9), layout="constrained")
    _draw(left, np.asarray(matrix.latency_s, dtype=float), "one-way latency", format_duration, "Oranges")
    _draw(right, np.asarray(matrix.bandwidth_bps, dtype=float), "bandwidth", format_rate, "Blues")
    left.set_ylabel("from rank")
    figure.savefig(output, dpi=140)
    plt.close(figure)


def _draw(axes: Axes, values: np.ndarray, title: str, write: Callable[[float], str], colours: str) -> None:
    from matplotlib.colors import LogNorm

    known = values[np.isfinite(values)]
    low, high = (known.min(), known.max()) if known.size else (1.0, 1.0)
    shades = LogNorm(vmin=low / 1.5, vmax=high * 1.5)
    axes.imshow(values, cmap=colours, norm=shades)
    axes.set(title=title, xlabel="to rank", xticks=range(len(values)), yticks=range(len(values)))
    if len(values) <= _MOST_LABELLED:
        for (row, column), value in np.ndenumerate(values):
            if np.isfinite(value):
                colour = "white" if shades(value) > 0.65 else "black"
                axes.text(
                    column, row, write(value).replace(" ", "\n"), ha="center", va="center", fontsize=7, color=colour
                )
