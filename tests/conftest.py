import atexit
import gc
import os
import shlex
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import settings

from headway.kernels import warm_up
from tests import forked
from tests.pool import Pool

os.environ["XDG_CACHE_HOME"] = _cache = tempfile.mkdtemp(prefix="headway-cache-")  # not the user's; for all processes
atexit.register(shutil.rmtree, _cache, ignore_errors=True)

TIERS = ("pool", "lab")
SCRIPTS = Path(__file__).with_name("scripts")

settings.register_profile("headway", deadline=None, max_examples=60, derandomize=True)
settings.load_profile("headway")

torch.set_num_threads(1)  # a second one spins while it waits, and tests share the cores with the workers they start


@pytest.fixture(scope="session", autouse=True)
def compiled_kernels() -> None:
    """Compile once, before the first test."""
    warm_up()


@pytest.fixture(scope="session")
def pool() -> Iterator[Pool]:
    """The persistent gloo workers; every test that asks for them shares them."""
    with Pool(size=9) as workers:
        yield workers


def make_program(path: Path, script: str, environment: str = "") -> str:
    """Write a program that runs a script in a forked process which has loaded torch; return its path."""
    path.write_text(f'#!/bin/sh\n{environment} exec {shlex.join(forked.command(SCRIPTS / script))} "$@"\n')
    path.chmod(0o755)
    return str(path)


@pytest.fixture(scope="session")
def forked_python(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A program to put in the place of `sys.executable`."""
    return make_program(tmp_path_factory.mktemp("bin") / "python", "python.py")


@pytest.fixture(scope="session")
def forked_torchrun(tmp_path_factory: pytest.TempPathFactory, forked_python: str) -> str:
    """A program to put in the place of ``torchrun``: it, and all that it starts, need not import torch."""
    path = tmp_path_factory.mktemp("bin") / "torchrun"
    return make_program(path, "torchrun.py", f"PYTHON_EXEC={shlex.quote(forked_python)}")


@pytest.fixture(params=[1, 2], ids=["1 thread", "2 threads"])
def threads(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """Run a kernel test on one thread and on two, with chunks small enough that two are really used."""
    monkeypatch.setattr("headway.kernels._threads.MIN_CHUNK", 2048)
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "pool" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.pool)
        item.user_properties += [("tier", tier) for tier in TIERS if item.get_closest_marker(tier)]


def pytest_collection_finish() -> None:
    """Keep what is loaded out of the garbage collector's way: every full collection would go through all of it."""
    gc.collect()
    gc.freeze()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say how many tests of the tiers that need processes or a network have really run."""
    for tier in TIERS:
        counts = {}
        for outcome in ("passed", "failed", "skipped"):
            reports = terminalreporter.stats.get(outcome, [])
            counts[outcome] = sum(("tier", tier) in getattr(report, "user_properties", ()) for report in reports)
        if any(counts.values()):
            said = ", ".join(f"{number} {outcome}" for outcome, number in counts.items())
            terminalreporter.write_line(f"{tier} tests: {said}")
