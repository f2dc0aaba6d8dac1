"""Draw which algorithm won where, from the figures of ``benchmarks/collectives.py``: one picture per collective."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import matplotlib.pyplot as plt
import typer
from matplotlib.axes import Axes
from matplotlib.patches import Patch, Rectangle

from collectives import LATENCIES_MS, PAYLOADS, RATES_MBPS, Cell, Outcome, size

COLOURS = {
    "native": "#9aa0a6",
    "one_shot": "#3b6fb6",
    "two_shot": "#7fb3e0",
    "ring": "#d98032",
    "recursive_doubling": "#4f9d69",
    "halving_doubling": "#a5cf8f",
    "bruck": "#c9b458",
    "tree": "#8e6bb0",
    "scatter_gather": "#c9a7dd",
    "chain": "#d98032",
    "star": "#b0413e",
}
DARK = ("one_shot", "recursive_doubling", "tree", "star")


def load(figures: Path) -> list[Outcome]:
    """Read what the benchmark wrote."""
    outcomes: list[dict[str, Any]] = json.loads(figures.read_text())["outcomes"]
    return [Outcome(cell=Cell(**found["cell"]), seconds=found["seconds"]) for found in outcomes]


def draw_panel(axes: Axes, outcomes: list[Outcome]) -> None:
    """Colour latency x bandwidth by the winner; the text is how much faster our best is than Gloo."""
    for outcome in outcomes:
        winner = min(outcome.seconds, key=outcome.seconds.__getitem__)
        x, y = RATES_MBPS.index(outcome.cell.mbps), LATENCIES_MS.index(outcome.cell.latency_ms)
        axes.add_patch(Rectangle((x - 0.5, y - 0.5), 1, 1, facecolor=COLOURS[winner], edgecolor="white", linewidth=2))
        colour = "white" if winner in DARK else "black"
        axes.text(x, y, f"{outcome.speedup:.1f}x", ha="center", va="center", fontsize=9, color=colour)
    axes.set(xlim=(-0.5, len(RATES_MBPS) - 0.5), ylim=(-0.5, len(LATENCIES_MS) - 0.5))
    axes.set_xticks(range(len(RATES_MBPS)), [f"{mbps:g}" for mbps in RATES_MBPS])
    axes.set_yticks(range(len(LATENCIES_MS)), [f"{ms:g}" for ms in LATENCIES_MS])
    axes.tick_params(length=0)


def draw(collective: str, outcomes: list[Outcome], output: Path) -> None:
    """Draw a panel for each number of hosts and payload."""
    hosts = sorted({outcome.cell.num_hosts for outcome in outcomes})
    figure, grid = plt.subplots(
        len(hosts), len(PAYLOADS), figsize=(11, 0.9 + 2.1 * len(hosts)), squeeze=False, sharex=True, sharey=True,
        layout="constrained",
    )  # fmt: skip
    for row, num_hosts in enumerate(hosts):
        for column, num_bytes in enumerate(PAYLOADS):
            axes = grid[row][column]
            here = [o for o in outcomes if (o.cell.num_hosts, o.cell.num_bytes) == (num_hosts, num_bytes)]
            draw_panel(axes, here)
            axes.set_title(f"{num_hosts} hosts, {size(num_bytes)}", fontsize=10)
    winners = {min(o.seconds, key=o.seconds.__getitem__) for o in outcomes}
    handles = [Patch(color=COLOURS[name], label=name.replace("_", " ")) for name in COLOURS if name in winners]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), frameon=False)
    for axes in grid[-1]:
        axes.set_xlabel("bandwidth, Mbps")
    figure.supylabel("one-way latency, ms", fontsize=10)
    figure.suptitle(f"{collective}: who wins, and how much faster our best is than Gloo's own")
    figure.savefig(output, dpi=110)
    plt.close(figure)


def main(
    figures: Annotated[Path, typer.Option(help="What the benchmark wrote.")] = Path("build/collectives.json"),
    folder: Annotated[Path, typer.Option(help="Where the pictures go.")] = Path("docs/pictures"),
) -> None:
    """Draw one picture per collective, and print the tables of the docs as Markdown."""
    outcomes = load(figures)
    folder.mkdir(parents=True, exist_ok=True)
    for collective in ("all_reduce", "all_gather", "broadcast"):
        here = [outcome for outcome in outcomes if outcome.cell.collective == collective]
        if here:
            draw(collective, here, folder / f"{collective}.png")
            print_markdown(collective, here)


def print_markdown(collective: str, outcomes: list[Outcome]) -> None:
    """Print a row a network and number of hosts: our best, its time, and Gloo's, for each payload."""
    print(f"\n| {collective}: hosts, ms, Mbps | " + " | ".join(map(size, PAYLOADS)) + " |")
    print("|---" * (1 + len(PAYLOADS)) + "|")
    for cell in dict.fromkeys((o.cell.num_hosts, o.cell.latency_ms, o.cell.mbps) for o in outcomes):
        row = [o for o in outcomes if (o.cell.num_hosts, o.cell.latency_ms, o.cell.mbps) == cell]
        texts = [
            f"{o.best} {o.seconds[o.best] * 1e3:.0f} / {o.seconds['native'] * 1e3:.0f} ({o.over_predicted:.2f})"
            for o in sorted(row, key=lambda o: o.cell.num_bytes)
        ]
        print(f"| {cell[0]}, {cell[1]:g}, {cell[2]:g} | " + " | ".join(texts) + " |")


if __name__ == "__main__":
    typer.run(main)
