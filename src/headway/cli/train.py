"""``headway train``: a reference workload, on local workers or an emulated network."""

from __future__ import annotations

import os
import sys
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from headway.cli.interrupts import raise_when_stopped
from headway.cli.networks import NetworkOptions, enter_user_namespace_if_needed
from headway.errors import HeadwayError

if TYPE_CHECKING:
    from headway.cli.train_flow import Request
    from headway.train.settings import Settings

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
_OF_A_LAUNCH = _NETWORK | {"workers", "compare", "port", "bandwidth_scale", "stretch", "or_loopback"}
_BESIDE_RESUME = {"resume", "steps", "as_json", "port"}


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(
        "train",
        help="Train a reference workload, and write a run directory: events, checkpoints, and what headway report "
        "needs. It starts workers by itself, on this machine's loopback or on an emulated network; under torchrun or "
        "headway emulate it joins the ranks instead.\n" + EXAMPLES,
    )(train)


def train(
    context: typer.Context,
    workload: Annotated[str, typer.Option(help="digits, fashion-mnist or text.")] = "digits",
    data: Annotated[str | None, typer.Option(help="A folder of idx files, or a text file.")] = None,
    model: Annotated[
        str | None, typer.Option(help="mlp, cnn, resnet or transformer; by default what suits the workload.")
    ] = None,
    method: Annotated[
        str,
        typer.Option(
            help="adaptive; ddp (without a hook); dense, allgather_topk, star_topk, var_topk, layerwise_topk, mstopk, "
            "randomk, quantized; gossip-dpsgd, gossip-naive, gossip-dcd, gossip-ecd, gossip-choco."
        ),
    ] = "adaptive",
    compare: Annotated[
        str | None, typer.Option(help="Methods, with commas: each does the same work, one after the other.")
    ] = None,
    workers: Annotated[int | None, typer.Option("--workers", "-n", help="How many to start; 2 if not given.")] = None,
    scenario: Annotated[
        str | None, typer.Option(help="A network to emulate: a preset (headway emulate --list) or a TOML file.")
    ] = None,
    latency: Annotated[str | None, typer.Option(help="Emulate a network: one way, such as 20ms.")] = None,
    bandwidth: Annotated[str | None, typer.Option(help="Of every NIC, each way, such as 100mbps.")] = None,
    jitter: Annotated[str | None, typer.Option(help="The delay varies by this much, such as 2ms.")] = None,
    loss: Annotated[str | None, typer.Option(help="Share of packets lost, such as 0.1%.")] = None,
    bandwidth_scale: Annotated[float, typer.Option(help="Multiply every bandwidth of the scenario.")] = 1.0,
    stretch: Annotated[float, typer.Option(help="Multiply every time and step of the scenario.")] = 1.0,
    or_loopback: Annotated[
        bool, typer.Option("--or-loopback", help="Where no lab is possible, use loopback instead, and say so.")
    ] = False,
    steps: Annotated[int | None, typer.Option(help="How many; with --resume, up to which.")] = None,
    epochs: Annotated[float, typer.Option(help="How often every sample is seen, without --steps.")] = 5.0,
    batch_size: Annotated[int, typer.Option(help="Of each worker.")] = 16,
    optimizer: Annotated[str | None, typer.Option(help="sgd or adamw; by default what suits the workload.")] = None,
    lr: Annotated[float | None, typer.Option(help="Learning rate; by default what suits the workload.")] = None,
    weight_decay: Annotated[float, typer.Option(help="Of the optimizer.")] = 1e-4,
    schedule: Annotated[str, typer.Option(help="Of the learning rate: constant, cosine or step.")] = "constant",
    warmup_steps: Annotated[int, typer.Option(help="Over which the learning rate rises.")] = 0,
    ratio: Annotated[float, typer.Option(help="Share of entries sent, of methods with one.")] = 0.01,
    values: Annotated[str, typer.Option(help="fp32, fp16 or int8, of the same.")] = "fp32",
    policy: Annotated[str, typer.Option(help="Of adaptive: fast, balanced, accurate, goodput or knee.")] = "balanced",
    topology: Annotated[str, typer.Option(help="Of gossip: ring, torus, exponential, complete or star.")] = "ring",
    eval_every: Annotated[int, typer.Option(help="Steps between evaluations.")] = 50,
    eval_samples: Annotated[int, typer.Option(help="Samples of the test set to evaluate on; 0 for all.")] = 2000,
    checkpoint_every: Annotated[int, typer.Option(help="Steps between checkpoints; 0 for one at the end.")] = 100,
    tensorboard: Annotated[bool, typer.Option("--tensorboard", help="Write scalars for TensorBoard as well.")] = False,
    seed: Annotated[int, typer.Option(help="Of the model, the order of samples, and the emulated network.")] = 0,
    timeout: Annotated[float, typer.Option(help="Seconds a worker may keep others waiting.")] = 60.0,
    output: Annotated[
        Path | None, typer.Option(help="The run directory to make; by default runs/, with time and name.")
    ] = None,
    resume: Annotated[Path | None, typer.Option(help="Go on with the run, or the comparison, in this folder.")] = None,
    port: Annotated[int | None, typer.Option(help="Where workers meet on loopback; by default any free one.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print a summary of every run as JSON at the end.")] = False,
) -> None:
    """Train; see ``register`` for the help text. Options are read by name where a dataclass has fields of theirs."""
    try:
        _check_together(context)
        from headway.cli.train_flow import Request
        from headway.train.settings import Settings

        options = {**context.params, "timeout_s": timeout}
        request = Request(
            settings=Settings(**{field.name: options[field.name] for field in fields(Settings)}),
            network=NetworkOptions(**{field.name: options[field.name] for field in fields(NetworkOptions)}),
            num_workers=_DEFAULT_WORKERS if workers is None else workers,
            or_loopback=or_loopback,
            port=port,
        )
        if _is_launched():
            _join(request.settings, output, resume, steps, as_json=as_json)
        else:
            _launch(request, compare, output, resume, as_json=as_json)
    except BrokenPipeError:  # whoever read our output has had enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())
        raise typer.Exit(141) from None
    except OSError as error:
        typer.echo(f"headway train: {error.filename or 'standard output'}: {error.strerror}", err=True)
        raise typer.Exit(2) from None
    except (ValueError, HeadwayError) as error:
        typer.echo(f"headway train: {error}", err=True)
        raise typer.Exit(getattr(error, "exit_code", 2)) from None


def _is_launched() -> bool:
    """Whether this process is a rank of somebody's."""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


def _check_together(context: typer.Context) -> None:
    """Refuse options that say nothing beside others that were given: nobody reads them."""
    sources = {name: context.get_parameter_source(name) for name in context.params}
    given = {name for name, source in sources.items() if source is not None and source.name == "COMMANDLINE"}

    def refuse(foreign: set[str], why: str) -> None:
        flags = [parameter.opts[0] for parameter in context.command.params if parameter.name in foreign]
        if flags:
            raise ValueError(f"{why}: leave out {', '.join(flags)}")

    if "resume" in given:
        refuse(given - _BESIDE_RESUME, "--resume takes everything but --steps from the folder")
    if _is_launched():
        refuse(given & _OF_A_LAUNCH, "ranks have been started already")
    if "compare" in given:
        refuse(given & {"method"}, "--compare names the methods")
    if not given & _NETWORK:
        refuse(given & {"bandwidth_scale", "stretch", "or_loopback"}, "no network is to be emulated")
    else:
        refuse(given & {"port"}, "emulated hosts meet where they like")


def _launch(request: Request, methods: str | None, output: Path | None, resume: Path | None, *, as_json: bool) -> None:
    """Start workers, and show how it ended."""
    from headway.cli import train_flow
    from headway.cli.train_ending import conclude, say_how_to_go_on
    from headway.train.run_folder import default_folder

    console = Console(stderr=True, highlight=False)
    names = _methods(methods)
    if request.network.is_given or resume is not None:
        enter_user_namespace_if_needed()
    kind = "comparison" if names else request.settings.method
    folder = resume or output or default_folder(f"{request.settings.workload}-{kind}")
    raise_when_stopped(times=2)
    try:
        if resume is not None:
            runs = train_flow.go_on(folder, request.settings.steps, request.port)
        elif names:
            runs = train_flow.compare(request.where_possible(console), names, folder)
        else:
            runs = [train_flow.start(request.where_possible(console), folder)]
    except KeyboardInterrupt:
        say_how_to_go_on(console, folder)
        raise typer.Exit(130) from None
    conclude(console, runs, folder, as_json=as_json)


def _join(settings: Settings, output: Path | None, resume: Path | None, steps: int | None, *, as_json: bool) -> None:
    """Train as a rank of somebody else's, and show at rank 0 how it ended."""
    from headway.cli.train_ending import conclude, say_how_to_go_on
    from headway.cli.train_join import train_as_rank
    from headway.train.run_folder import default_folder
    from headway.train.worker import FAILURES, STOPPED, explain, leave

    folder = resume or output or default_folder(f"{settings.workload}-{settings.method}")
    try:
        run, reason = train_as_rank(settings, folder, resume=resume is not None, steps=steps)
    except FAILURES as error:
        typer.echo(f"headway train: {explain(error)}", err=True)
        leave(2 if isinstance(error, (ValueError, OSError)) else 1)
    console = Console(stderr=True, highlight=False)
    if run is not None and reason == "stopped":
        say_how_to_go_on(console, run.folder, is_joined=True)
    elif run is not None:
        conclude(console, [run], run.folder, as_json=as_json)
    leave(STOPPED if reason == "stopped" else 0)


def _methods(text: str | None) -> list[str]:
    """Return the methods to compare, if that is what is wanted."""
    if text is None:
        return []
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names or len(set(names)) < len(names):
        raise ValueError(f"--compare is {text!r}, but must be different methods with commas, such as ddp,adaptive")
    return names
