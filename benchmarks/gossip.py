"""When is gossip worth it? Plain DDP, our centralised exchanges and gossip on a ring, on good and bad networks.

8 workers, the CNN of 1.66M parameters, Fashion-MNIST (the digits where it is not installed), 16 images each; all
contenders of a network in one run. Targets: a step of dcd at 50 ms and 1 Gbps at most 1.3 times that at 1 ms and one
latency; at 50 ms and 5 Mbps at least 10 times as fast as DDP.
"""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from headway.lab import Lab, LinkSpec, SaturationWarning, Scenario

WORKER = Path(__file__).with_name("gossip_worker.py")
NUM_HOSTS = 8
LATENCIES_MS, BANDWIDTHS_MBPS = (1, 20, 50), (5, 40, 1000)
NAMES = (
    "alone",
    "DDP",
    "ours adaptive",
    "ours allgather_topk 1%",
    "dpsgd",
    "dcd 8 bits",
    "dcd 8 bits, every 4th step",
    "ecd 8 bits",
    "choco 4 bits",
    "choco sign",
)
TIMEOUT_S = 3600

Found = dict[str, dict[str, Any]]


def network_of(latency_ms: int, mbps: int) -> str:
    """Return the name of a network."""
    return f"{latency_ms} ms, {mbps} Mbps"


def measure(latency_ms: int, mbps: int, names: list[str], budget_s: float, data: str, console: Console) -> Found:
    """Return the measurements of every contender on one network."""
    found: Found = {}

    def note(_rank: int, line: str) -> None:
        if line.startswith("{"):
            seen = json.loads(line)
            found[seen["name"]] = seen
            console.print(
                f"{network_of(latency_ms, mbps)}: {seen['name']} {1e3 * seen['seconds']:.0f} ms {seen['chosen']}"
            )

    link = LinkSpec(latency_s=latency_ms / 1e3, bandwidth_bps=mbps * 1e6)
    command = [sys.executable, str(WORKER), ",".join(name.replace(",", ";") for name in names), str(budget_s), data]
    with Lab(NUM_HOSTS, Scenario(link=link)) as lab, warnings.catch_warnings():
        warnings.simplefilter("ignore", SaturationWarning)
        result = lab.run(command, output=note, timeout_s=TIMEOUT_S)
    if result.exit_code != 0:
        raise RuntimeError(f"rank {result.first_failed} failed: {result.tails[result.first_failed or 0]}")
    return found


def table_of(results: dict[str, Found], cell: Any) -> Table:
    """Return a table with a figure of every contender, and a column for each network."""
    table = Table("contender", *results)
    for name in NAMES:
        if any(name in found for found in results.values()):
            table.add_row(name, *(cell(found[name]) if name in found else "" for found in results.values()))
    return table


def verdicts(results: dict[str, Found]) -> list[str]:
    """Compare the figures with the targets."""
    lines = []
    near, far = (results.get(network_of(ms, 1000), {}).get("dcd 8 bits") for ms in (1, 50))
    if near and far:
        limit_s = 1.3 * near["seconds"] + 0.050
        lines.append(f"dcd at 50 ms, 1 Gbps: {1e3 * far['seconds']:.0f} ms a step (limit {1e3 * limit_s:.0f} ms)")
    poor = results.get(network_of(50, 5), {})
    for name in NAMES[2:]:
        if name in poor and "DDP" in poor:
            times = poor["DDP"]["seconds"] / poor[name]["seconds"]
            limit = " (limit 10x)" if name == "dcd 8 bits" else ""
            lines.append(f"50 ms, 5 Mbps: {name} is {times:.1f}x as fast as DDP{limit}")
    return lines


def draw(results: dict[str, Found], path: Path) -> None:
    """Write the picture: training loss against time, a panel for each network."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(
        len(LATENCIES_MS), len(BANDWIDTHS_MBPS), figsize=(13, 11), layout="constrained", squeeze=False
    )
    for row, latency_ms in enumerate(LATENCIES_MS):
        for column, mbps in enumerate(BANDWIDTHS_MBPS):
            panel, found = axes[row][column], results.get(network_of(latency_ms, mbps), {})
            for name in NAMES[1:]:
                if name in found:
                    panel.plot(found[name]["times"], smooth(found[name]["losses"]), label=name)
            panel.set(xscale="log", title=network_of(latency_ms, mbps), xlabel="s", ylabel="training loss")
    handles, labels = max((panel.get_legend_handles_labels() for panel in axes.flat), key=lambda found: len(found[1]))
    figure.legend(handles, labels, loc="outside lower center", ncols=5)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=90)
    plt.close(figure)


def smooth(losses: list[float], window: int = 5) -> list[float]:
    """Return running means."""
    return [sum(losses[max(0, last - window + 1) : last + 1]) / min(window, last + 1) for last in range(len(losses))]


def main(
    output: Annotated[Path, typer.Option(help="Output file; figures already in it are kept.")] = Path(
        "build/gossip.json"
    ),
    picture: Annotated[Path, typer.Option(help="Output file of the picture.")] = Path("build/gossip.png"),
    budget: Annotated[float, typer.Option(help="Seconds of training for a contender, if steps are short.")] = 15.0,
    only: Annotated[str | None, typer.Option(help="Networks, such as '50x5,1x1000' (ms x Mbps).")] = None,
    data: Annotated[str, typer.Option(help="A folder of idx files.")] = "",
) -> None:
    """Measure, print tables, and write figures and picture."""
    console = Console(width=220)
    results: dict[str, Found] = json.loads(output.read_text()) if output.exists() else {}
    networks = [(ms, mbps) for mbps in BANDWIDTHS_MBPS for ms in LATENCIES_MS]
    wanted = networks if only is None else [tuple(map(int, pair.split("x"))) for pair in only.split(",")]
    output.parent.mkdir(exist_ok=True, parents=True)
    for latency_ms, mbps in wanted:
        name = network_of(latency_ms, mbps)
        missing = [contender for contender in NAMES if contender not in results.get(name, {})]
        if missing:
            found = measure(latency_ms, mbps, missing, budget, data, console)
            results[name] = {**results.get(name, {}), **found}
            output.write_text(json.dumps(results))
    ordered = {network_of(*pair): results[network_of(*pair)] for pair in networks if network_of(*pair) in results}
    console.print("ms a step", table_of(ordered, lambda seen: f"{1e3 * seen['seconds']:,.0f}"))
    console.print("kB a step that a rank sends", table_of(ordered, lambda seen: f"{seen['bytes'] / 1e3:,.0f}"))
    for line in verdicts(ordered):
        console.print(line)
    draw(ordered, picture)


if __name__ == "__main__":
    typer.run(main)
