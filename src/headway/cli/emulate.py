"""``headway emulate``: any torchrun-style script on emulated hosts and links."""

from __future__ import annotations

import json
import warnings
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from headway.cli.emulate_screen import EmulateScreen
from headway.cli.options import settings_from, with_fields
from headway.cli.pictures import scenario_table
from headway.cli.process import enter_user_namespace_if_needed, errors_in_one_line, raise_on_signals
from headway.lab import Lab, RunResult, Scenario, ScenarioError, leftovers, load_scenario, preset_names
from headway.lab.network_options import NetworkOptions

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
    )(with_fields(emulate, {"Emulated network": NetworkOptions}))


def emulate(
    command: Annotated[list[str] | None, typer.Argument(help="The program and its arguments, after --.")] = None,
    *,
    num_hosts: Annotated[int, typer.Option("-n", "--hosts", help="Number of hosts, with one rank on each.")] = 2,
    seed: Annotated[int, typer.Option(help="Seed of jitter and loss.")] = 0,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show the output of rank 0 only.")] = False,
    json_path: Annotated[
        Path | None, typer.Option("--json", help="Write exit codes, time, traffic of each pair and relay load here.")
    ] = None,
    list_presets: Annotated[bool, typer.Option("--list", help="Show the presets, with pictures, and exit.")] = False,
    clean: Annotated[bool, typer.Option("--clean", help="Remove the remains of killed labs, and exit.")] = False,
    **options: Any,
) -> None:
    """Emulate a network; see ``register`` for the help text."""
    with errors_in_one_line("emulate"):
        if list_presets:
            Console().print(scenario_table([load_scenario(name) for name in preset_names()]))
        elif clean:
            found = leftovers.clean()
            typer.echo(f"ended {len(found.processes)} processes, removed {len(found.folders)} folders")
        else:
            scenario = settings_from(NetworkOptions, options).build()
            result = _run(scenario, num_hosts, command or [], seed, quiet, json_path)
            raise typer.Exit(result.exit_code)


def _run(
    scenario: Scenario, num_hosts: int, command: list[str], seed: int, quiet: bool, json_path: Path | None
) -> RunResult:
    if not command:
        raise ScenarioError("nothing to run: give a program after --, as in: headway emulate -n 4 -- python train.py")
    enter_user_namespace_if_needed()
    if json_path is not None:
        json_path.touch()  # fail before the run if it cannot be written
    raise_on_signals()
    with EmulateScreen(scenario, quiet=quiet) as screen, warnings.catch_warnings():
        warnings.showwarning = lambda message, *_: screen.note(str(message))
        try:
            with Lab(num_hosts, scenario, seed=seed, on_action=screen.show_action) as lab:
                result = lab.run(command, output=screen.show_line, on_progress=screen.show_progress)
        except KeyboardInterrupt:
            screen.note("stopped; all workers have been ended")
            raise typer.Exit(130) from None
        screen.show_end(result)
    if json_path is not None:
        _write_json(json_path, result)
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
