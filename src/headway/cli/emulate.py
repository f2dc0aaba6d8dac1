"""``headway emulate``: any torchrun-style script on emulated hosts and links."""

from __future__ import annotations

import json
import os
import sys
import warnings
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from headway.cli.interrupts import raise_when_stopped
from headway.cli.networks import NetworkOptions, enter_user_namespace_if_needed
from headway.cli.pictures import scenario_table
from headway.cli.screen import Screen
from headway.errors import LabError
from headway.lab import (
    Lab,
    RunResult,
    Scenario,
    ScenarioError,
    leftovers,
    load_scenario,
    preset_names,
)

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
        context_settings={"allow_interspersed_args": False},
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
        chosen = NetworkOptions(
            scenario=scenario,
            latency=latency,
            bandwidth=bandwidth,
            jitter=jitter,
            loss=loss,
            bandwidth_scale=bandwidth_scale,
            stretch=stretch,
        ).build()
        if not command:
            raise ScenarioError(
                "nothing to run: give a program after --, as in: headway emulate -n 4 -- python train.py"
            )
        enter_user_namespace_if_needed()
        if json_path is not None:
            json_path.touch()  # a place that cannot be written must not cost a run
        result = _run(chosen, num_hosts, command, seed, quiet)
        if json_path is not None:
            _write_json(json_path, result)
        raise typer.Exit(result.exit_code)
    except OSError as error:
        typer.echo(f"headway emulate: {error.filename or 'standard output'}: {error.strerror}", err=True)
        raise typer.Exit(2) from None
    except (ValueError, LabError) as error:
        typer.echo(f"headway emulate: {error}", err=True)
        raise typer.Exit(2) from None


def _clean() -> None:
    found = leftovers.clean()
    typer.echo(f"ended {len(found.processes)} processes, removed {len(found.folders)} folders")


def _run(scenario: Scenario, num_hosts: int, command: list[str], seed: int, quiet: bool) -> RunResult:
    raise_when_stopped()
    with Screen(scenario, quiet=quiet) as screen, warnings.catch_warnings():
        warnings.showwarning = lambda message, *_: screen.note(str(message))
        try:
            with Lab(num_hosts, scenario, seed=seed, on_action=screen.show_action) as lab:
                result = lab.run(command, output=screen.show_line, on_progress=screen.show_progress)
        except KeyboardInterrupt:
            screen.note("stopped; all workers have been ended")
            raise typer.Exit(130) from None
        except BrokenPipeError:  # whoever read our output has had enough
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(141) from None
        screen.show_end(result)
    return result


def _write_json(path: Path, result: RunResult) -> None:
    content = {
        "exit_codes": result.exit_codes,
        "first_failed": result.first_failed,
        "elapsed_s": result.elapsed_s,
        "bytes": result.counters.num_bytes.tolist(),
        "packets": result.counters.num_packets.tolist(),
        "lost_packets": result.counters.num_lost.tolist(),
        "relay": {**asdict(result.load), "is_saturated": result.load.is_saturated},
    }
    path.write_text(json.dumps(content, indent=1) + "\n")
