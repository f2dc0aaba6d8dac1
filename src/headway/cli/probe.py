"""``headway probe``: latency and bandwidth between ranks."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from headway.cli.pictures import check_picture
from headway.cli.process import errors_in_one_line
from headway.errors import HeadwayError
from headway.units import format_duration, format_rate

if TYPE_CHECKING:
    from headway.network import PairMatrix

_RENDEZVOUS = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")

EXAMPLES = """
Examples:

  torchrun --nproc-per-node 4 -m headway probe

  headway emulate -n 4 --latency 20ms --bandwidth 100mbps -- python -m headway probe --json
"""


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(
        "probe",
        help="Measure latency and bandwidth between every two ranks of an otherwise idle network. Launch it on the "
        "ranks like a training script; rank 0 prints.\n" + EXAMPLES,
    )(probe)


def probe(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    plot: Annotated[Path | None, typer.Option(help="Draw both matrices into this file: .png, .svg or .pdf.")] = None,
    timeout: Annotated[float, typer.Option(help="Seconds to wait for a rank before giving up.")] = 60.0,
) -> None:
    """Probe; see ``register`` for the help text."""
    missing = [name for name in _RENDEZVOUS if name not in os.environ]
    if missing:
        typer.echo(
            f"headway probe: {', '.join(missing)} not set: launch it on the ranks, as in: "
            "torchrun --nproc-per-node 2 -m headway probe",
            err=True,
        )
        raise typer.Exit(2)
    with errors_in_one_line("probe", (HeadwayError, ValueError, ImportError, RuntimeError)):
        if plot is not None:
            check_picture(plot, "--plot", (".png", ".svg", ".pdf"))
        _run(as_json=as_json, plot=plot, timeout_s=timeout)


def _run(*, as_json: bool, plot: Path | None, timeout_s: float) -> None:
    import torch.distributed as dist

    from headway.collectives import Executor
    from headway.network import probe_pairs

    dist.init_process_group("gloo")
    console = Console(stderr=True)
    with Executor(timeout_s=timeout_s) as executor, Progress(console=console, transient=True) as progress:
        is_first = executor.rank == 0
        task = progress.add_task("probing pairs", total=None, visible=is_first and console.is_terminal)
        matrix = probe_pairs(executor, lambda done, total: progress.update(task, completed=done, total=total))
    if is_first:
        if as_json:
            typer.echo(json.dumps(asdict(matrix), allow_nan=False))
        else:
            _show(matrix)
        if plot is not None:
            from headway.report import draw_pair_matrix

            draw_pair_matrix(matrix, plot)
    dist.barrier()
    dist.destroy_process_group()


def _show(matrix: PairMatrix) -> None:
    console = Console()
    for title, rows, write in (
        ("one-way latency, from row to column", matrix.latency_s, format_duration),
        ("bandwidth, from row to column", matrix.bandwidth_bps, format_rate),
    ):
        console.print(title)
        table = Table("", *[f"rank {rank}" for rank in range(len(rows))])
        for rank, row in enumerate(rows):
            cells = ["" if value is None else write(value) for value in row]
            table.add_row(f"rank {rank}", *cells)
        console.print(table)
