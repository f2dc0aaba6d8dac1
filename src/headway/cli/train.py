"""``headway train``: a reference workload, on local workers or an emulated network."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from headway.cli.options import DeferredCommand, settings_from, with_fields
from headway.cli.process import enter_user_namespace_if_needed, errors_in_one_line, raise_on_signals
from headway.lab.network_options import NetworkOptions

if TYPE_CHECKING:
    from headway.train.session import Request
    from headway.train.settings import TrainSettings

EXAMPLES = """
Examples:

  headway train --workers 4

  headway train --workers 4 --scenario c2 --bandwidth-scale 0.04 --compare ddp,adaptive,gossip-dcd

  headway train --workload text --workers 2 --latency 20ms --bandwidth 50mbps --method star_topk --ratio 0.02

  torchrun --nproc-per-node 4 -m headway train --workload fashion-mnist --method adaptive

  headway train --resume runs/2026-01-31-120000-digits-adaptive
"""

_DEFAULT_WORKERS = 2
_NETWORK = {"scenario", "latency", "bandwidth", "jitter", "loss"}
_LAUNCH = _NETWORK | {"workers", "compare", "port", "bandwidth_scale", "stretch", "or_loopback"}
_WITH_RESUME = {"resume", "steps", "as_json", "port"}


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(
        "train",
        cls=DeferredCommand,
        help="Train a reference workload, and write a run directory with events, checkpoints and what headway report "
        "needs. It starts its own workers on this machine's loopback or on an emulated network; under torchrun or "
        "headway emulate it joins the ranks instead.\n" + EXAMPLES,
    )(_with_options)


def _with_options() -> Callable[..., None]:
    """Return the command; importing its settings imports torch."""
    from headway.train.settings import TrainSettings

    return with_fields(train, {"Training": TrainSettings, "Emulated network": NetworkOptions})


def train(
    context: typer.Context,
    *,
    workers: Annotated[int | None, typer.Option("--workers", "-n", help="Workers to start; by default 2.")] = None,
    compare: Annotated[
        str | None, typer.Option(help="Methods, separated by commas, to run one after the other on the same work.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option(help="Run directory to create; by default in runs/, named by time and method.")
    ] = None,
    resume: Annotated[Path | None, typer.Option(help="Continue the run, or the comparison, in this folder.")] = None,
    port: Annotated[int | None, typer.Option(help="Port of the loopback rendezvous; by default a free one.")] = None,
    or_loopback: Annotated[
        bool, typer.Option("--or-loopback", help="Use loopback, with a notice, where no lab is possible.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print a summary of every run as JSON at the end.")] = False,
    **options: Any,
) -> None:
    """Train; see ``register`` for the help text."""
    with errors_in_one_line("train"):
        _check_combination(context)
        from headway.train.session import Request
        from headway.train.settings import TrainSettings

        request = Request(
            settings=settings_from(TrainSettings, options),
            network=settings_from(NetworkOptions, options),
            num_workers=_DEFAULT_WORKERS if workers is None else workers,
            port=port,
        )
        if _is_launched():
            _join(request.settings, output, resume, as_json=as_json)
        else:
            _launch(request, compare, output, resume, or_loopback=or_loopback, as_json=as_json)


def _is_launched() -> bool:
    """Return whether a launcher such as torchrun started this process as a rank."""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


def _check_combination(context: typer.Context) -> None:
    """Reject options that have no effect in combination with others."""
    sources = {name: context.get_parameter_source(name) for name in context.params}
    given = {name for name, source in sources.items() if source is not None and source.name == "COMMANDLINE"}

    def reject(names: set[str], why: str) -> None:
        flags = [parameter.opts[0] for parameter in context.command.params if parameter.name in names]
        if flags:
            raise ValueError(f"{why}: leave out {', '.join(flags)}")

    if "resume" in given:
        reject(given - _WITH_RESUME, "--resume takes everything but --steps from the folder")
    if _is_launched():
        reject(given & _LAUNCH, "ranks have been started already")
    if "compare" in given:
        reject(given & {"method"}, "--compare names the methods")
    if not given & _NETWORK:
        reject(given & {"bandwidth_scale", "stretch", "or_loopback"}, "there is no network to emulate")
    else:
        reject(given & {"port"}, "emulated hosts choose their own port")


def _launch(
    request: Request, methods: str | None, output: Path | None, resume: Path | None, *, or_loopback: bool, as_json: bool
) -> None:
    """Start workers, and show how the runs ended."""
    from headway.cli.train_screen import TrainScreen
    from headway.cli.train_summary import say, say_how_to_resume, show_runs
    from headway.train import session
    from headway.train.run_folder import default_folder

    console = Console(stderr=True, highlight=False)
    names = _method_names(methods)
    if request.network.is_given or resume is not None:
        enter_user_namespace_if_needed()
    kind = "comparison" if names else request.settings.method
    folder = resume or output or default_folder(f"{request.settings.workload}-{kind}")
    raise_on_signals(times=2)
    try:
        if resume is not None:
            runs = session.resume(folder, request.settings.steps, request.port, TrainScreen)
        else:
            if or_loopback:
                request = request.where_possible(lambda text: say(console, f"headway train: {text}"))
            runs = session.start(request, names, folder, TrainScreen)
    except KeyboardInterrupt:
        say_how_to_resume(console, folder)
        raise typer.Exit(130) from None
    show_runs(console, runs, folder, as_json=as_json)


def _join(settings: TrainSettings, output: Path | None, resume: Path | None, *, as_json: bool) -> None:
    """Train as a rank that a launcher started, and show at rank 0 how the run ended."""
    from headway.cli.train_screen import TrainScreen
    from headway.cli.train_summary import say_how_to_resume, show_runs
    from headway.train.run_folder import default_folder
    from headway.train.worker import FAILURES, STOPPED, explain, leave, train_as_rank

    folder = resume or output or default_folder(f"{settings.workload}-{settings.method}")
    try:
        run, reason = train_as_rank(settings, folder, TrainScreen, resume=resume is not None)
    except FAILURES as error:
        typer.echo(f"headway train: {explain(error)}", err=True)
        leave(2 if isinstance(error, (ValueError, OSError)) else 1)
    console = Console(stderr=True, highlight=False)
    if run is not None and reason == "stopped":
        say_how_to_resume(console, run.folder, is_joined=True)
    elif run is not None:
        show_runs(console, [run], run.folder, as_json=as_json)
    leave(STOPPED if reason == "stopped" else 0)


def _method_names(text: str | None) -> list[str]:
    """Return the methods to compare, if there are any."""
    if text is None:
        return []
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names or len(set(names)) < len(names):
        raise ValueError(f"--compare is {text!r}, but must be different methods with commas, such as ddp,adaptive")
    return names
