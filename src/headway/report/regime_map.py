"""The regime map: latency against bandwidth, coloured by the fastest exchange, with lines of equal speed-up."""

from __future__ import annotations

import colorsys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from headway.report.exchange_styles import RGB, SATURATION, describe, in_order, label_of
from headway.tuner import Regimes
from headway.units import format_duration, format_rate

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_LIGHTEST, _DARKEST = 0.84, 0.48
"""The lightness of an exchange's algorithms, from the most frequent winner to the least."""
_LEVELS = (1.5, 2, 5, 10, 20, 50, 100, 200, 500)
_MOST_COLUMNS = 3
SUFFIXES = (".png", ".svg", ".pdf", ".html")

Winner = tuple[str, str]


def draw_regime_map(panels: Sequence[Regimes], output: Path, *, title: str, columns: int | None = None) -> None:
    """Write a picture (.png, .svg, .pdf) or an interactive page (.html).

    Needs ``pip install headway[plot]``.

    Args:
        panels: The maps to draw, row by row.
        output: The file to write; its suffix gives the format.
        title: The title above all panels.
        columns: The number of panels in a row; by default 3 at most.
    """
    columns = columns or min(len(panels), _MOST_COLUMNS)
    if output.suffix not in SUFFIXES:
        raise ValueError(f"{output} does not end in one of {', '.join(SUFFIXES)}")
    if output.suffix == ".html":
        _write_page(panels, output, title, columns)
    else:
        _draw_picture(panels, output, title, columns)


def _winners(panels: Sequence[Regimes]) -> list[Winner]:
    """Return all winners, by exchange and then by how often they win."""
    counts = Counter(winner for panel in panels for row in panel.winners for winner in row)
    order = in_order(exchange for exchange, _ in counts)
    return sorted(counts, key=lambda winner: (order.index(winner[0]), -counts[winner]))


def _colours(winners: Sequence[Winner]) -> dict[Winner, RGB]:
    """Return the colour of each winner: the hue of its exchange, in a lightness of its own."""
    colours: dict[Winner, RGB] = {}
    for exchange in dict.fromkeys(exchange for exchange, _ in winners):
        description = describe(exchange)
        hue = None if description is None else description.hue
        own = [winner for winner in winners if winner[0] == exchange]
        for winner, lightness in zip(own, np.linspace(_LIGHTEST, _DARKEST, max(len(own), 2)), strict=False):
            colours[winner] = colorsys.hls_to_rgb(hue or 0.0, float(lightness), 0.0 if hue is None else SATURATION)
    return colours


def _label(winner: Winner) -> str:
    return f"{label_of(winner[0])}, {winner[1].replace('_', ' ')}"


def _caption(panel: Regimes) -> str:
    return f"{panel.num_ranks} workers, {100 * panel.ratio:g}% of entries"


def _indices(panel: Regimes, winners: Sequence[Winner]) -> list[list[int]]:
    return [[winners.index(winner) for winner in row] for row in panel.winners]


def _draw_picture(panels: Sequence[Regimes], output: Path, title: str, columns: int) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt
    from matplotlib.patches import Patch

    winners = _winners(panels)
    colours = _colours(winners)
    rows = -(-len(panels) // columns)
    figure, grid = plt.subplots(
        rows, columns, figsize=(1.2 + 3.6 * columns, 1.9 + 3.1 * rows), squeeze=False, sharex=True, sharey=True,
        layout="constrained",
    )  # fmt: skip
    for axes, panel in zip(grid.flat, panels, strict=False):
        _draw_panel(axes, panel, _indices(panel, winners), [colours[winner] for winner in winners])
    for axes in list(grid.flat)[len(panels) :]:
        axes.set_visible(False)
    handles = [
        Patch(facecolor=colours[winner], edgecolor="0.4", linewidth=0.5, label=_label(winner)) for winner in winners
    ]
    ncols = min(len(handles), columns + 1)
    figure.legend(handles=handles, loc="outside lower center", ncols=ncols, frameon=False, fontsize=9)
    for axes in grid[-1]:
        axes.set_xlabel("bandwidth of a NIC", fontsize=9)
    for axes in grid[:, 0]:
        axes.set_ylabel("one-way latency", fontsize=9)
    figure.suptitle(f"{title}\nlines: times faster than dense by torch's own all-reduce", fontsize=11)
    figure.savefig(output, dpi=160)
    plt.close(figure)


def _draw_panel(axes: Axes, panel: Regimes, indices: list[list[int]], colours: list[Any]) -> None:
    from matplotlib.colors import ListedColormap
    from matplotlib.ticker import FuncFormatter, NullLocator

    x, y = np.asarray(panel.bandwidths_bps), np.asarray(panel.latencies_s)
    axes.pcolormesh(x, y, np.asarray(indices), cmap=ListedColormap(colours), vmin=-0.5, vmax=len(colours) - 0.5,
                    shading="nearest", rasterized=True)  # fmt: skip
    axes.set(xscale="log", yscale="log", title=_caption(panel))
    axes.title.set_fontsize(10)
    levels = [level for level in _LEVELS if panel.speedups.min() < level < panel.speedups.max()]
    if levels:
        lines = axes.contour(x, y, panel.speedups, levels=levels, colors="black", linewidths=0.8)
        axes.clabel(lines, fmt=lambda level: f"{level:g}x", fontsize=8)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: format_rate(value)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: format_duration(value)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_minor_locator(NullLocator())
    axes.tick_params(labelsize=8)


def _write_page(panels: Sequence[Regimes], output: Path, title: str, columns: int) -> None:
    from plotly import graph_objects
    from plotly.subplots import make_subplots

    winners = _winners(panels)
    colours = _colours(winners)
    rows = -(-len(panels) // columns)
    figure = make_subplots(
        rows, columns, subplot_titles=[_caption(panel) for panel in panels], shared_xaxes=True, shared_yaxes=True
    )
    scale = _steps([f"rgb({','.join(str(round(255 * part)) for part in colours[winner])})" for winner in winners])
    for number, panel in enumerate(panels):
        place = {"row": number // columns + 1, "col": number % columns + 1}
        axes = {"x": list(panel.bandwidths_bps), "y": list(panel.latencies_s)}
        names = [[_label(winner) for winner in row] for row in panel.winners]
        figure.add_trace(
            graph_objects.Heatmap(
                z=_indices(panel, winners), colorscale=scale, zmin=-0.5, zmax=len(winners) - 0.5, showscale=number == 0,
                colorbar={"tickvals": list(range(len(winners))), "ticktext": [_label(winner) for winner in winners]},
                text=names, customdata=panel.speedups.tolist(), **axes,
                hovertemplate="%{text}<br>%{customdata:.1f}x faster than dense<br>"
                "%{y:.3g} s, %{x:.3g} bps<extra></extra>",
            ),
            **place,
        )  # fmt: skip
        figure.add_trace(
            graph_objects.Contour(
                z=np.log2(panel.speedups).tolist(), showscale=False, hoverinfo="skip", **axes,
                contours={"coloring": "none", "start": 1, "end": 9, "size": 1}, line={"color": "black", "width": 1},
            ),
            **place,
        )  # fmt: skip
    figure.update_xaxes(type="log", title_text="bandwidth, bps")
    figure.update_yaxes(type="log", title_text="one-way latency, s")
    figure.update_layout(title=f"{title}; a line for each doubling of the speed-up over dense", template="plotly_white")
    figure.write_html(output, include_plotlyjs=True)


def _steps(colours: Sequence[str]) -> list[tuple[float, str]]:
    """Return a colour scale of steps, without blending.

    >>> _steps(["red", "blue"])
    [(0.0, 'red'), (0.5, 'red'), (0.5, 'blue'), (1.0, 'blue')]
    """
    share = 1 / len(colours)
    return [(edge * share, colour) for place, colour in enumerate(colours) for edge in (place, place + 1)]
