"""``headway doctor``: versions, the machine, and a test of every exchange."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import time
from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

EXAMPLES = """
Examples:

  headway doctor

  headway doctor --json --no-self-test
"""

_NEEDED = ("headway", "torch", "numpy", "numba", "typer", "rich")
_OPTIONAL = {
    "pyroute2": "lab",
    "plotly": "plot",
    "matplotlib": "plot",
    "tensorboard": "tensorboard",
    "lightning": "lightning",
    "accelerate": "accelerate",
    "transformers": "transformers",
}


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(
        "doctor",
        help="Show versions, threads, whether a lab is possible or why not, and the cache of compiled kernels; then "
        "test every exchange on two local workers, in about ten seconds. The exit code is 1 if something that "
        "training needs does not work.\n" + EXAMPLES,
    )(doctor)


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    test: Annotated[bool, typer.Option("--self-test/--no-self-test", help="Test every exchange.")] = True,
) -> None:
    """Run all checks; see ``register`` for the help text."""
    console = Console(stderr=as_json, highlight=False)
    found: dict[str, Any] = {"versions": _versions(), "machine": _machine(), "kernels": _kernels(), "lab": _lab()}
    if not as_json:
        _show(console, found)
    if test:
        with console.status("testing every exchange on two workers ..."):
            found["self_test"] = _self_test()
        if not as_json:
            _show_self_test(console, found["self_test"])
    is_well = found["kernels"]["error"] is None and (not test or found["self_test"]["is_good"])
    if as_json:
        typer.echo(json.dumps({**found, "is_well": is_well}, indent=1))
    else:
        console.print("all is well" if is_well else "something does not work: see above", style="bold")
    raise typer.Exit(0 if is_well else 1)


def _versions() -> dict[str, str | None]:
    return {"python": platform.python_version(), **{name: _version(name) for name in (*_NEEDED, *_OPTIONAL)}}


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _machine() -> dict[str, Any]:
    import torch
    import torch.distributed as dist

    from headway.train.images import FASHION_MNIST
    from headway.train.launch import free_bytes

    return {
        "system": f"{platform.system()} {platform.release()}, {platform.machine()}",
        "cores": len(os.sched_getaffinity(0)),
        "torch_threads": torch.get_num_threads(),
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS"),
        "free_memory_gb": round(free_bytes() / 1e9, 1),
        "gloo": dist.is_available() and dist.is_gloo_available(),
        "cuda": torch.cuda.is_available(),
        "fashion_mnist": str(FASHION_MNIST) if FASHION_MNIST.is_dir() else None,
    }


def _kernels() -> dict[str, Any]:
    """Compile the kernels, or load them from the cache."""
    from headway._compile import cache_folder
    from headway.kernels import warm_up
    from headway.kernels.radix import count_block

    cache = cache_folder(count_block)
    start = time.perf_counter()
    error = None
    try:
        warm_up()
    except Exception as failure:  # any error of numba is what the user wants to know
        error = f"{type(failure).__name__}: {failure}"
    return {
        "cache": "not writable: every process compiles the kernels" if cache is None else str(cache),
        "num_cached": 0 if cache is None else len(list(cache.glob("*.nbc"))),
        "ready_after_s": round(time.perf_counter() - start, 2),
        "error": error,
    }


def _lab() -> dict[str, Any]:
    from headway.lab import possible

    reason = possible.missing()
    if reason is not None and possible.missing_besides_privilege() is None and possible.may_make_user_namespaces():
        return {"is_possible": True, "how": "in a user namespace"}
    return {"is_possible": reason is None, "how": "directly" if reason is None else reason}


def _self_test() -> dict[str, Any]:
    from headway.errors import HeadwayError
    from headway.train.self_test import self_test

    start = time.perf_counter()
    try:
        verdicts = self_test()
    except (HeadwayError, RuntimeError, TimeoutError, OSError) as error:
        return {"is_good": False, "error": str(error), "exchanges": [], "seconds": time.perf_counter() - start}
    return {
        "is_good": bool(verdicts) and all(verdict.is_good for verdict in verdicts),
        "error": None,
        "exchanges": [{**asdict(verdict), "is_good": verdict.is_good} for verdict in verdicts],
        "seconds": time.perf_counter() - start,
    }


def _show(console: Console, found: dict[str, Any]) -> None:
    for title in ("versions", "machine", "kernels", "lab"):
        table = Table(title, "", box=SIMPLE_HEAD, pad_edge=False)
        for name, value in found[title].items():
            if not (title == "kernels" and value is None):
                table.add_row(name.replace("_", " "), Text(_words(name, value)))
        console.print(table)


def _words(name: str, value: Any) -> str:
    if value is None and name in _OPTIONAL:
        return f"not installed: pip install 'headway[{_OPTIONAL[name]}]'"
    if value is None:
        return "not set" if name.isupper() else "not installed"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value)


def _show_self_test(console: Console, result: dict[str, Any]) -> None:
    table = Table("exchange", "result", "error", "took", box=SIMPLE_HEAD, pad_edge=False)
    for each in result["exchanges"]:
        word = "good" if each["is_good"] else "WRONG" if each["was_used"] else "NOT USED"
        word = word if each["are_equal"] else "UNEQUAL"
        table.add_row(each["exchange"], word, f"{each['error']:.1e}", f"{each['seconds']:.2f} s")
    console.print(table)
    if result["error"] is not None:
        console.print(f"the self-test failed: {result['error']}", markup=False, soft_wrap=True)
