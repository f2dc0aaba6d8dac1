"""``headway plan``: the predicted cost of every exchange, and the best one."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from headway.cli.pictures import check_picture
from headway.cli.process import errors_in_one_line
from headway.units import parse_count, parse_duration_s, parse_rate_bps, parse_share

MODELS = ("headway", "textbook")
DEFAULT_RATIOS = (0.001, 0.003, 0.01, 0.03, 0.1)
MAP_RATIO = 0.01
MOST_WORKERS = 512
"""Some schedules have a transfer for every pair of ranks."""

EXAMPLES = """
Examples:

  headway plan --params 25.6M --workers 8 --latency 4ms --bandwidth 1gbps --ratio 0.01

  headway plan --module my_package.models:make_model --workers 8 --latency 20ms --bandwidth 100mbps

  headway plan --params 25.6M --workers 4,8,16 --ratio 0.01 --map regimes.png
"""


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(
        "plan",
        help="Predict the time of each exchange and algorithm on a network, and name the best; without --ratio, for a "
        "range of ratios. The textbook model has α and β alone, as in papers; the headway model adds the overhead of "
        "rounds and messages, and the time to compress as measured on this machine.\n" + EXAMPLES,
    )(plan)


def plan(
    params: Annotated[str | None, typer.Option(help="Number of parameters, such as 25.6M.")] = None,
    module: Annotated[
        str | None, typer.Option(help="Count the parameters of a model instead: package:factory.")
    ] = None,
    workers: Annotated[
        str, typer.Option("--workers", "-n", help="Number of workers; several, such as 4,8,16, for --map.")
    ] = "8",
    latency: Annotated[str | None, typer.Option(help="One-way latency, such as 4ms.")] = None,
    bandwidth: Annotated[str | None, typer.Option(help="Bandwidth of a NIC in each direction, such as 1gbps.")] = None,
    ratio: Annotated[str | None, typer.Option(help="Share of entries to send, such as 0.01 or 1%; or several.")] = None,
    compute: Annotated[str, typer.Option(help="Time of a step without communication, such as 28ms.")] = "0ms",
    model: Annotated[str, typer.Option(help=f"Cost model: {', '.join(MODELS)}.")] = MODELS[0],
    topology: Annotated[
        str,
        typer.Option(help="Topology of gossip: ring, torus, exponential, complete or star. Not in the textbook model."),
    ] = "ring",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    map_path: Annotated[
        Path | None, typer.Option("--map", help="Draw the regime map into this file: .png, .svg, .pdf or .html.")
    ] = None,
) -> None:
    """Plan; see ``register`` for the help text."""
    with errors_in_one_line("plan"):
        if model not in MODELS:
            raise ValueError(f"--model is {model!r}, but must be one of {', '.join(MODELS)}")
        counts = [_workers(text) for text in workers.split(",")]
        ratios = None if ratio is None else [_ratio(text) for text in ratio.split(",")]
        numels = _numels(params, module)
        if model == MODELS[0] and max(counts) > MOST_WORKERS:
            raise ValueError(f"--workers is {workers}, but at most {MOST_WORKERS} are counted: use --model textbook")
        if map_path is not None:
            if as_json or model != MODELS[0] or latency or bandwidth:
                raise ValueError("--map goes with neither --json, --model textbook, --latency nor --bandwidth")
            check_picture(map_path, "--map", (".png", ".svg", ".pdf", ".html"))
            _draw_map(numels, counts, ratios or [MAP_RATIO], map_path)
        elif len(counts) > 1:
            raise ValueError(f"--workers is {workers!r}, but several are for --map: give one")
        else:
            link, compute_s = _link(latency, bandwidth), parse_duration_s(compute)
            _print_costs(numels, counts[0], link, ratios, compute_s, model, topology, as_json=as_json)


def _workers(text: str) -> int:
    count = parse_count(text)
    if count < 1:
        raise ValueError(f"--workers is {text}, but there must be 1 or more")
    return count


def _ratio(text: str) -> float:
    try:
        ratio = parse_share(text)
    except ValueError as error:
        raise ValueError(f"--ratio: {error}") from None
    if ratio == 0:
        raise ValueError(f"--ratio is {text}, but must be above 0 and at most 1")
    return ratio


def _link(latency: str | None, bandwidth: str | None) -> Any:
    from headway.network import Link

    missing = [flag for flag, given in (("--latency", latency), ("--bandwidth", bandwidth)) if given is None]
    if latency is None or bandwidth is None:
        raise ValueError(f"give {' and '.join(missing)}, as in: --latency 4ms --bandwidth 1gbps")
    rate_bps = parse_rate_bps(bandwidth)
    if rate_bps == 0:
        raise ValueError(f"--bandwidth is {bandwidth}, but must be above 0")
    return Link(latency_s=parse_duration_s(latency), bandwidth_bps=rate_bps)


def _numels(params: str | None, module: str | None) -> list[int]:
    """Return the sizes of the model's tensors; one, if only the total is known."""
    if (params is None) == (module is None):
        raise ValueError("give --params (such as 25.6M) or --module (package:factory), one of the two")
    if params is not None:
        count = parse_count(params)
        if count < 1:
            raise ValueError(f"--params is {params}, but there must be 1 or more")
        return [count]
    assert module is not None
    return _numels_of_module(module)


def _numels_of_module(name: str) -> list[int]:
    import importlib

    package, _, factory = name.partition(":")
    if not factory:
        raise ValueError(f"--module is {name!r}, but must be package:factory, such as my_package.models:make_model")
    sys.path.insert(0, "")
    try:
        made = getattr(importlib.import_module(package), factory)()
        numels = [parameter.numel() for parameter in made.parameters() if parameter.requires_grad]
    except Exception as error:  # any error of the user's code is shown to the user
        raise ValueError(f"--module {name}: {type(error).__name__}: {error}".replace("\n", " ")) from None
    if not numels:
        raise ValueError(f"--module {name} has no parameters that are trained")
    return numels


def _print_costs(
    numels: list[int],
    num_workers: int,
    link: Any,
    ratios: list[float] | None,
    compute_s: float,
    model: str,
    topology: str,
    *,
    as_json: bool,
) -> None:
    from headway.cli import plan_tables
    from headway.gossip import topology_of

    if model == "textbook":
        report: plan_tables.Report = plan_tables.TextbookReport(sum(numels), num_workers, link, ratios, compute_s)
    else:
        report = plan_tables.ModelReport(
            numels, num_workers, link, ratios, compute_s, topology_of(topology, num_workers)
        )
    if as_json:
        typer.echo(json.dumps(report.as_json(), indent=2))
    else:
        report.show()


def _draw_map(numels: list[int], counts: list[int], ratios: list[float], output: Path) -> None:
    from headway.cli.plan_map import draw

    draw(numels, counts, ratios, output)
    typer.echo(f"wrote {output}")
