"""How much of its time does training compute, rather than wait? Local steps, the hook and peers, on twelve networks.

The share is the time of a step without any exchange, measured in the same run just before, divided by the time of a
step. 8 workers that share the cores, the CNN of 1.66M parameters, Fashion-MNIST (the digits where it is not installed).
A contender goes through all networks in one training, from the best to the worst: to attach takes a minute or more at
5 Mbps. All of it takes some ten minutes on a quiet machine. What a step teaches is another question.
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

from headway.lab import Lab, LinkSpec, Phase, SaturationWarning, Scenario, When
from peer_diloco import why_missing

WORKER = Path(__file__).with_name("computing_share_worker.py")
BANDWIDTHS_MBPS, LATENCIES_MS = (1000, 100, 20, 5), (20, 50, 100)
CONTENDERS: tuple[dict[str, Any], ...] = (
    {"name": "local auto", "kind": "local", "num_settling": 24, "num_steps": 48},
    {"name": "hook", "kind": "adaptive", "num_settling": 14, "num_steps": 24},
    {"name": "SparseLoCo 30", "kind": "sparseloco", "options": {"steps": 30}, "num_settling": 0, "num_steps": 30},
    {"name": "DiLoCo 32", "kind": "diloco", "options": {"steps": 32}, "num_settling": 0, "num_steps": 32},
)
"""Whole rounds of the peers are counted. Where something is chosen live, it has some steps to settle."""
TIMEOUT_S = 3600

Network = tuple[int, int]
Found = dict[str, dict[str, Any]]


def name_of(network: Network) -> str:
    """Return the name of a network, given its Mbps and ms."""
    return f"{network[0]} Mbps, {network[1]} ms"


def networks_of(only: str | None) -> list[Network]:
    """Return all networks, or those asked for."""
    everything = [(mbps, ms) for mbps in BANDWIDTHS_MBPS for ms in LATENCIES_MS]
    if only is None:
        return everything
    pairs = [pair.split("x") for pair in only.split(",")]
    return [(int(mbps), int(ms)) for mbps, ms in pairs]


def measure(networks: list[Network], contenders: list[dict[str, Any]], num_hosts: int, data: str, note: Any) -> None:
    """Run one contender after the other, each on all networks; tell of each network as it ends."""
    links = [LinkSpec(latency_s=ms / 1e3, bandwidth_bps=mbps * 1e6) for mbps, ms in networks]
    played = links * len(contenders)
    phases = tuple(Phase(start=When(at_step=number), link=link) for number, link in enumerate(played))

    def take(_rank: int, line: str) -> None:
        if line.startswith("{"):
            note(json.loads(line))

    command = [sys.executable, str(WORKER), json.dumps(contenders), str(len(networks)), data]
    with Lab(num_hosts, Scenario(link=links[0], phases=phases)) as lab, warnings.catch_warnings():
        warnings.simplefilter("ignore", SaturationWarning)
        result = lab.run(command, output=take, timeout_s=TIMEOUT_S)
    if result.exit_code != 0:
        raise RuntimeError(f"rank {result.first_failed} failed: {result.tails[result.first_failed or 0]}")


def table_of(results: dict[str, Found]) -> Table:
    """Return shares, and the time of a step, of every contender on every network."""
    table = Table("network", *(contender["name"] for contender in CONTENDERS))
    for network, found in results.items():
        table.add_row(network, *(cell_of(found.get(contender["name"])) for contender in CONTENDERS))
    return table


def cell_of(seen: dict[str, Any] | None) -> str:
    """Return the share of time that a contender computes, the time of a step, and H if it was chosen."""
    if seen is None:
        return ""
    chosen = f", H = {seen['local_steps']}" if seen["local_steps"] > 1 else ""
    return f"{seen['alone_s'] / seen['seconds']:.0%} ({1e3 * seen['seconds']:.0f} ms{chosen})"


def main(
    output: Annotated[Path, typer.Option(help="Where the figures go.")] = Path("build/computing_share.json"),
    only: Annotated[str | None, typer.Option(help="Networks, such as '5x50,1000x20' (Mbps x ms).")] = None,
    hosts: Annotated[int, typer.Option(min=2, help="Number of workers.")] = 8,
    data: Annotated[str, typer.Option(help="A folder of idx files.")] = "",
) -> None:
    """Measure, print the table, and write the figures."""
    console = Console(width=160)
    networks, contenders = networks_of(only), list(CONTENDERS)
    missing = why_missing()
    if missing is not None:
        console.print(f"DiLoCo is left out: {missing}", markup=False)
        contenders = [each for each in contenders if each["kind"] != "diloco"]
    results: dict[str, Found] = {name_of(network): {} for network in networks}

    def note(seen: dict[str, Any]) -> None:
        network = name_of(networks[seen["network"]])
        results[network][seen["name"]] = seen
        console.print(f"{network}: {seen['name']} {cell_of(seen)}, alone {1e3 * seen['alone_s']:.0f} ms")

    measure(networks, contenders, hosts, data, note)
    output.parent.mkdir(exist_ok=True, parents=True)
    output.write_text(json.dumps(results))
    console.print(table_of(results))


if __name__ == "__main__":
    typer.run(main)
