"""From a request to runs: one or several, new or gone on with, each on workers of its own."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from shlex import quote
from typing import Any

from rich.console import Console

from headway.cli.networks import NetworkOptions
from headway.cli.train_screen import TrainScreen
from headway.cli.train_state import Follower
from headway.errors import HeadwayError
from headway.lab import possible
from headway.lab.loopback import check_port
from headway.lab.results import Outcome
from headway.report import Run, read_run
from headway.report.events import COMPARISON_FILE, CONFIG_FILE, VERSION
from headway.train.launch import LOOPBACK, Launch, Watcher
from headway.train.machine import check_machine
from headway.train.run_folder import (
    JOINED,
    check_unfinished,
    has_finished,
    locked,
    make_folder,
    open_folder,
    settings_of,
)
from headway.train.settings import Settings
from headway.train.worker import STOPPED

_POLL_S = 0.1


class TrainingFailed(HeadwayError):
    """A worker has failed; its last words have been shown."""

    def __init__(self, rank: int, exit_code: int, folder: Path) -> None:
        self.exit_code = exit_code
        command = f"headway train --resume {quote(str(folder))}"
        super().__init__(f"rank {rank} failed with exit code {exit_code}; mend it and go on with: {command}")


@dataclass(frozen=True, kw_only=True)
class Request:
    """What the user wants."""

    settings: Settings
    num_workers: int
    network: NetworkOptions
    or_loopback: bool = False
    port: int | None = None

    @property
    def surroundings(self) -> dict[str, Any]:
        """What a run directory keeps beside the settings."""
        return {
            "workers": self.num_workers,
            "network": self.network.label or LOOPBACK,
            "network_options": self.network.as_dict(),
        }

    @classmethod
    def of_config(cls, config: dict[str, Any], path: Path, steps: int | None, port: int | None) -> Request:
        """Return what a run directory was made for, perhaps with more steps.

        Raises:
            ValueError: The configuration, which is in the file, is damaged.
        """
        settings = settings_of(config, path)
        try:
            network = NetworkOptions(**config["network_options"])
        except (KeyError, TypeError) as error:
            raise ValueError(f"{path} is damaged ({error}): train anew") from None
        return cls(
            settings=settings if steps is None else replace(settings, steps=steps),
            num_workers=config["workers"],
            network=network,
            port=port,
        )

    def with_method(self, method: str) -> Request:
        """Return the same work with another method."""
        return replace(self, settings=replace(self.settings, method=method))

    def where_possible(self, console: Console) -> Request:
        """Return the same, or without a lab where none is possible and loopback will do."""
        reason = possible.missing() if self.network.is_given and self.or_loopback else None
        if reason is None:
            return self
        console.print(f"headway train: no emulated network, but loopback: {reason}", soft_wrap=True)
        return replace(self, network=NetworkOptions())

    def check(self) -> None:
        """Find out now, and not when workers are under way, what cannot work."""
        check_machine(self.num_workers, self.settings)
        if self.network.is_given:
            self.network.build().check_ranks(self.num_workers)
            possible.check()
        elif self.port is not None:
            check_port(self.port)


def start(request: Request, folder: Path) -> Run:
    """Train in a new folder."""
    request.check()
    make_folder(folder, request.settings, request.surroundings)
    return _follow(request, folder)


def compare(request: Request, methods: Sequence[str], folder: Path) -> list[Run]:
    """Train with several methods, one after the other, on the same work; each run is a folder inside."""
    requests = {method: request.with_method(method) for method in methods}
    for each in requests.values():
        each.check()
    if (folder / COMPARISON_FILE).exists() or (folder / CONFIG_FILE).exists():
        raise ValueError(f"{folder} holds runs already: give another folder, or go on with --resume {folder}")
    folder.mkdir(parents=True, exist_ok=True)
    config = {**request.settings.as_dict(), **request.surroundings}
    content = {"version": VERSION, "methods": list(methods), "request": config}
    (folder / COMPARISON_FILE).write_text(json.dumps(content, indent=1) + "\n")
    return [start(each, folder / method) for method, each in requests.items()]


def go_on(folder: Path, steps: int | None = None, port: int | None = None) -> list[Run]:
    """Go on with a run, or with what is left of a comparison."""
    if not (folder / COMPARISON_FILE).exists():
        config = open_folder(folder)
        if config["network"] == JOINED:
            raise ValueError(
                f"{folder} was made under a launcher: go on in the same way, as in: torchrun --nproc-per-node "
                f"{config['workers']} -m headway train --resume {quote(str(folder))}"
            )
        request = Request.of_config(config, folder / CONFIG_FILE, steps, port)
        check_unfinished(folder, request.settings)
        return [_go_on(request, folder)]
    plan = _read_comparison(folder / COMPARISON_FILE)
    request = Request.of_config(plan["request"], folder / COMPARISON_FILE, steps, port)
    return [_go_on_or_leave(request.with_method(method), folder / method) for method in plan["methods"]]


def _go_on(request: Request, folder: Path) -> Run:
    request.check()
    make_folder(folder, request.settings, request.surroundings, replace=True)
    return _follow(request, folder)


def _go_on_or_leave(request: Request, folder: Path) -> Run:
    """Go on with a run of a comparison, or start it; leave it alone if it has all its steps."""
    if has_finished(folder, request.settings):
        return read_run(folder)
    return _go_on(request, folder)


def _read_comparison(path: Path) -> dict[str, Any]:
    try:
        plan: dict[str, Any] = json.loads(path.read_text())
    except ValueError:
        raise ValueError(f"{path} is not JSON: the file is damaged") from None
    if not isinstance(plan, dict) or plan.get("version") != VERSION:
        version = plan.get("version") if isinstance(plan, dict) else None
        raise ValueError(f"{path} is of version {version!r}, but this headway reads {VERSION}: train anew")
    if not (isinstance(plan.get("methods"), list) and isinstance(plan.get("request"), dict)):
        raise ValueError(f"{path} is damaged: train anew")
    return plan


def _follow(request: Request, folder: Path) -> Run:
    """Start the workers, show what happens, and read what is left of it."""
    launch = Launch(
        folder=folder,
        num_workers=request.num_workers,
        scenario=request.network.build() if request.network.is_given else None,
        port=request.port,
        seed=request.settings.seed,
    )
    title = title_of(request.settings, request.num_workers, request.network.label or LOOPBACK)
    with locked(folder):
        outcome = _show(launch, title)
    if outcome.exit_code == STOPPED:
        raise KeyboardInterrupt  # somebody has asked the workers themselves
    if outcome.first_failed is not None:
        raise TrainingFailed(outcome.first_failed, outcome.exit_code, folder)
    return read_run(folder)


def _show(launch: Launch, title: str) -> Outcome:
    follower = Follower(launch.folder)
    read_s = 0.0
    with TrainScreen(title) as screen:
        for event in follower.read():  # of an earlier life
            screen.state.take(event)

        def show_news() -> None:
            for event in follower.read():
                screen.show(event)

        def progress() -> None:
            nonlocal read_s
            if time.monotonic() - read_s > _POLL_S:
                read_s = time.monotonic()
                show_news()

        words = "stopping: workers finish the step in hand and save; Ctrl-C again ends them at once"
        watcher = Watcher(on_line=screen.show_output, on_progress=progress, on_interrupt=lambda: screen.note(words))
        try:
            return launch.run(watcher)
        finally:
            show_news()


def title_of(settings: Settings, num_workers: int, network: str) -> str:
    """Return what is trained, how and where."""
    return f"{settings.method}: {settings.workload} on {num_workers} workers, {network}"
