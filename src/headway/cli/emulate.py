"""``headway emulate``: any torchrun-style script on emulated hosts and links."""

from __future__ import annotations

import json
import os
import signal
import sys
from dataclasses import asdict
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer
from rich.console import Console
from rich.live import Live
from rich.text import Text

from headway.cli.pictures import scenario_table
from headway.errors import LabError
from headway.lab import (
    Action,
    Counters,
    Lab,
    Link,
    Progress,
    RelayLoad,
    RunResult,
    Scenario,
    ScenarioError,
    leftovers,
    load_scenario,
    possible,
    preset_names,
    unprivileged,
)
from headway.units import format_duration, format_rate, parse_duration_s, parse_rate_bps, parse_share

EXAMPLES = """
Examples:

  headway emulate -n 8 --latency 20ms --bandwidth 100mbps -- python train.py --epochs 3

  headway emulate -n 8 --scenario c2 --bandwidth-scale 0.04 -- python train.py

  headway emulate -n 4 --scenario my_wan.toml -- python train.py
"""


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(
        "emulate",
        help="Run a torchrun-style script on emulated hosts: one network namespace for each rank, and links "
        "between them with latency, bandwidth, jitter, loss and cuts that change over time. "
        "The script needs no change.\n" + EXAMPLES,
        context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
    )(emulate)


def emulate(
    command: Annotated[list[str] | None, typer.Argument(help="The program and its arguments, after --.")] = None,
    num_hosts: Annotated[int, typer.Option("-n", "--hosts", help="How many hosts; one rank on each.")] = 2,
    scenario: Annotated[str | None, typer.Option(help="A preset (see --list) or a TOML file.")] = None,
    latency: Annotated[str | None, typer.Option(help="One way, such as 20ms. Without --scenario.")] = None,
    bandwidth: Annotated[str | None, typer.Option(help="Of every NIC, each way, such as 100mbps.")] = None,
    jitter: Annotated[str | None, typer.Option(help="The delay varies by this much, such as 2ms.")] = None,
    loss: Annotated[str | None, typer.Option(help="Share of packets lost, such as 0.1%.")] = None,
    bandwidth_scale: Annotated[float, typer.Option(help="Multiply every bandwidth of the scenario.")] = 1.0,
    stretch: Annotated[float, typer.Option(help="Multiply every time and step of the scenario.")] = 1.0,
    seed: Annotated[int, typer.Option(help="Of jitter and loss.")] = 0,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show the output of rank 0 only.")] = False,
    json_path: Annotated[
        Path | None, typer.Option("--json", help="Write exit codes, time, traffic of each pair and relay load here.")
    ] = None,
    list_presets: Annotated[bool, typer.Option("--list", help="Show the presets, with pictures, and exit.")] = False,
    clean: Annotated[bool, typer.Option("--clean", help="Remove what killed labs have left behind, and exit.")] = False,
) -> None:
    """Emulate a network; see ``register`` for the help text."""
    try:
        if list_presets:
            Console().print(scenario_table([load_scenario(name) for name in preset_names()]))
            return
        if clean:
            _clean()
            return
        chosen = _scenario(scenario, latency, bandwidth, jitter, loss).scaled(bandwidth=bandwidth_scale, time=stretch)
        if not command:
            raise ScenarioError(
                "nothing to run: give a program after --, as in: headway emulate -n 4 -- python train.py"
            )
        _enter_user_namespace_if_needed()
        raise typer.Exit(_run(chosen, num_hosts, command, seed, quiet, json_path))
    except (ValueError, LabError) as error:
        typer.echo(f"headway emulate: {error}", err=True)
        raise typer.Exit(2) from None


def _scenario(
    name: str | None, latency: str | None, bandwidth: str | None, jitter: str | None, loss: str | None
) -> Scenario:
    flags = {"--latency": latency, "--bandwidth": bandwidth, "--jitter": jitter, "--loss": loss}
    if name is not None:
        given = [flag for flag, value in flags.items() if value is not None]
        if given:
            raise ScenarioError(f"{', '.join(given)} cannot go with --scenario: write it into the scenario's file")
        return load_scenario(name)
    link = Link(
        latency_s=None if latency is None else parse_duration_s(latency),
        bandwidth_bps=None if bandwidth is None else parse_rate_bps(bandwidth),
        jitter_s=None if jitter is None else parse_duration_s(jitter),
        loss=None if loss is None else parse_share(loss),
    )
    return Scenario(name="flags", link=link)


def _clean() -> None:
    found = leftovers.clean()
    typer.echo(f"ended {len(found.processes)} processes, removed {len(found.folders)} folders")


def _enter_user_namespace_if_needed() -> None:
    if os.geteuid() == 0 or unprivileged.ENTERED_VARIABLE in os.environ:
        return
    if possible.missing_beside_privilege() is None and possible.may_make_namespaces(with_user_namespace=True):
        unprivileged.restart(sys.argv[1:])


def _run(scenario: Scenario, num_hosts: int, command: list[str], seed: int, quiet: bool, json_path: Path | None) -> int:
    screen = _Screen(scenario, quiet)
    signal.signal(signal.SIGTERM, _interrupt)
    with screen, Lab(num_hosts, scenario, seed=seed, on_action=screen.show_action) as lab:
        try:
            result = lab.run(command, output=screen.show_line, on_progress=screen.show_progress)
        except KeyboardInterrupt:
            screen.note("stopped; all workers have been ended")
            return 130
        except FileNotFoundError as error:
            raise LabError(f"{error.filename}: no such program") from None
        load, counters = lab.load(), lab.counters()
    if json_path is not None:
        _write_json(json_path, result, counters, load)
    screen.show_end(result)
    if load.is_saturated:
        screen.note(
            f"the relay was saturated ({load.cpu_share:.0%} of a core, packets {format_duration(load.mean_lateness_s)} "
            "late on average): times are the relay's and not the network's; use fewer hosts or less bandwidth"
        )
    return result.exit_code


def _write_json(path: Path, result: RunResult, counters: Counters, load: RelayLoad) -> None:
    content = {
        "exit_codes": result.exit_codes,
        "first_failed": result.first_failed,
        "elapsed_s": result.elapsed_s,
        "bytes": counters.num_bytes.tolist(),
        "packets": counters.num_packets.tolist(),
        "lost_packets": counters.num_lost.tolist(),
        "relay": {**asdict(load), "is_saturated": load.is_saturated},
    }
    path.write_text(json.dumps(content, indent=1) + "\n")


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


class _Screen:
    """Lines of the workers on standard output, and what the lab has to say on standard error."""

    def __init__(self, scenario: Scenario, quiet: bool) -> None:
        self._scenario = scenario
        self._quiet = quiet
        self._console = Console(stderr=True, highlight=False)
        self._live = Live(console=self._console, transient=True, refresh_per_second=5)
        self._last = (0.0, 0)

    def __enter__(self) -> _Screen:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def show_line(self, rank: int, line: str) -> None:
        if rank == 0 or not self._quiet:
            sys.stdout.write(f"[{rank}] {line}\n")
            sys.stdout.flush()

    def show_progress(self, progress: Progress) -> None:
        if not self._live.is_started:
            return
        last_s, last_bytes = self._last
        if progress.elapsed_s - last_s < 0.2:
            return
        rate_bps = 8 * (progress.num_bytes - last_bytes) / (progress.elapsed_s - last_s)
        self._last = (progress.elapsed_s, progress.num_bytes)
        parts = [f"{progress.elapsed_s:.0f} s", self._phase(progress.phase)]
        parts += [] if progress.step is None else [f"step {progress.step}"]
        parts += [format_rate(rate_bps), f"{progress.num_packets:,} packets", f"relay {progress.load.cpu_share:.0%}"]
        self._live.update(Text("  ".join(parts), style="dim"))

    def show_action(self, action: Action) -> None:
        if action.kind == "phase":
            self.note(self._phase(action.phase))
        else:
            self.note(f"{action.kind} {', '.join(f'rank {rank}' for rank in action.ranks)}")

    def show_end(self, result: RunResult) -> None:
        if result.first_failed is not None:
            self.note(f"rank {result.first_failed} failed with exit code {result.exit_code}")
            if self._quiet and result.first_failed != 0:
                for line in result.tails[result.first_failed]:
                    typer.echo(f"[{result.first_failed}] {line}", err=True)

    def note(self, text: str) -> None:
        self._console.print(f"headway emulate: {text}", markup=False)

    def _phase(self, number: int | None) -> str:
        if number is None:
            return self._scenario.name
        link = self._scenario.phases[number].link
        latency_s = self._scenario.link.latency_s if link.latency_s is None else link.latency_s
        rate_bps = self._scenario.link.bandwidth_bps if link.bandwidth_bps is None else link.bandwidth_bps
        parts = [f"{self._scenario.name} phase {number + 1} of {len(self._scenario.phases)}"]
        parts += [] if latency_s is None else [format_duration(latency_s)]
        parts += [] if rate_bps is None else [format_rate(rate_bps)]
        return ", ".join(parts)
