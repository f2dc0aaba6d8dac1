"""Runs that ``headway train`` launches: one or several, new or resumed, each with its own workers."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from shlex import quote
from typing import Any

from headway.errors import HeadwayError
from headway.lab import possible
from headway.lab.loopback import check_port
from headway.lab.network_options import NetworkOptions
from headway.lab.results import Outcome
from headway.report import Run, read_run
from headway.report.events import COMPARISON_FILE, CONFIG_FILE, VERSION
from headway.train.launch import LOOPBACK, Launch, check_machine
from headway.train.progress import EventFollower, OpenScreen
from headway.train.run_folder import (
    JOINED,
    check_unfinished,
    has_finished,
    locked,
    make_folder,
    open_folder,
    settings_of,
)
from headway.train.settings import TrainSettings
from headway.train.worker import STOPPED

_POLL_S = 0.1


class TrainingFailed(HeadwayError):
    """A worker has failed; its output has been shown."""

    def __init__(self, rank: int, exit_code: int, folder: Path) -> None:
        self.exit_code = exit_code
        command = f"headway train --resume {quote(str(folder))}"
        super().__init__(f"rank {rank} failed with exit code {exit_code}; fix the cause and continue with: {command}")


@dataclass(frozen=True, kw_only=True)
class Request:
    """What to train, and on which workers and network."""

    settings: TrainSettings
    num_workers: int
    network: NetworkOptions
    port: int | None = None

    @property
    def surroundings(self) -> dict[str, Any]:
        """What a run directory keeps in addition to the settings."""
        return {"workers": self.num_workers, "network": self.network_label, "network_options": self.network.as_dict()}

    @property
    def network_label(self) -> str:
        """The network in a few words."""
        return self.network.label or LOOPBACK

    @classmethod
    def from_config(cls, config: dict[str, Any], path: Path, steps: int | None, port: int | None) -> Request:
        """Return the request that a run directory was made for, perhaps with more steps.

        Raises:
            ValueError: The configuration, which is in the file, is damaged.
        """
        settings = settings_of(config, path, steps)
        try:
            network = NetworkOptions(**config["network_options"])
        except (KeyError, TypeError) as error:
            raise ValueError(f"{path} is damaged ({error}): start a new run") from None
        return cls(settings=settings, num_workers=config["workers"], network=network, port=port)

    def with_method(self, method: str) -> Request:
        """Return the same work with another method."""
        return replace(self, settings=replace(self.settings, method=method))

    def where_possible(self, say: Callable[[str], None]) -> Request:
        """Return the same request, or one on loopback, and say why, if its network cannot be emulated here."""
        reason = possible.missing() if self.network.is_given else None
        if reason is None:
            return self
        say(f"no emulated network, but loopback: {reason}")
        return replace(self, network=NetworkOptions())

    def check(self) -> None:
        """Raise `ValueError` for what cannot work, before any worker starts."""
        check_machine(self.num_workers, self.settings)
        if self.network.is_given:
            self.network.build().check_ranks(self.num_workers)
            possible.check()
        elif self.port is not None:
            check_port(self.port)


def start(request: Request, methods: Sequence[str], folder: Path, open_screen: OpenScreen) -> list[Run]:
    """Train in a new folder: one run, or a run for each of several methods, one after the other on the same work.

    Args:
        request: What to train.
        methods: Methods to compare, each in a folder inside; empty for one run with the method of the request.
        folder: The run directory, or the folder of the comparison.
        open_screen: Makes the screen of each run.
    """
    if not methods:
        request.check()
        return [_run(request, folder, open_screen)]
    requests = {method: request.with_method(method) for method in methods}
    for each in requests.values():
        each.check()
    if (folder / COMPARISON_FILE).exists() or (folder / CONFIG_FILE).exists():
        raise ValueError(f"{folder} holds runs already: give another folder, or continue with --resume {folder}")
    folder.mkdir(parents=True, exist_ok=True)
    config = {**request.settings.as_dict(), **request.surroundings}
    content = {"version": VERSION, "methods": list(methods), "request": config}
    (folder / COMPARISON_FILE).write_text(json.dumps(content, indent=1) + "\n")
    return [_run(each, folder / method, open_screen) for method, each in requests.items()]


def resume(folder: Path, steps: int | None, port: int | None, open_screen: OpenScreen) -> list[Run]:
    """Continue a run, or what is left of a comparison.

    Args:
        folder: The run directory, or the folder of the comparison.
        steps: New number of steps; None keeps the number.
        port: Port of the loopback rendezvous; None for a free one.
        open_screen: Makes the screen of each run.
    """
    if (folder / COMPARISON_FILE).exists():
        plan = _read_comparison(folder / COMPARISON_FILE)
        request = Request.from_config(plan["request"], folder / COMPARISON_FILE, steps, port)
        requests = {folder / method: request.with_method(method) for method in plan["methods"]}
        return [_resume_unless_finished(each, inside, open_screen) for inside, each in requests.items()]
    config = open_folder(folder)
    if config["network"] == JOINED:
        raise ValueError(
            f"{folder} was made under a launcher: resume it in the same way, as in: torchrun --nproc-per-node "
            f"{config['workers']} -m headway train --resume {quote(str(folder))}"
        )
    request = Request.from_config(config, folder / CONFIG_FILE, steps, port)
    check_unfinished(folder, request.settings)
    return [_resume_unless_finished(request, folder, open_screen)]


def _resume_unless_finished(request: Request, folder: Path, open_screen: OpenScreen) -> Run:
    if has_finished(folder, request.settings):
        return read_run(folder)
    request.check()
    return _run(request, folder, open_screen, is_resumed=True)


def _read_comparison(path: Path) -> dict[str, Any]:
    try:
        plan: dict[str, Any] = json.loads(path.read_text())
    except ValueError:
        raise ValueError(f"{path} is not JSON: the file is damaged") from None
    if not isinstance(plan, dict) or plan.get("version") != VERSION:
        version = plan.get("version") if isinstance(plan, dict) else None
        raise ValueError(f"{path} is of version {version!r}, but this headway reads {VERSION}: start a new run")
    if not (isinstance(plan.get("methods"), list) and isinstance(plan.get("request"), dict)):
        raise ValueError(f"{path} is damaged: start a new run")
    return plan


def _run(request: Request, folder: Path, open_screen: OpenScreen, *, is_resumed: bool = False) -> Run:
    """Start the workers, show the run until they end, and read its directory."""
    make_folder(folder, request.settings, request.surroundings, replace=is_resumed)
    launch = Launch(
        folder=folder,
        num_workers=request.num_workers,
        scenario=request.network.build() if request.network.is_given else None,
        port=request.port,
        seed=request.settings.seed,
    )
    with locked(folder):
        outcome = _follow(launch, request.settings.title(request.num_workers, request.network_label), open_screen)
    if outcome.exit_code == STOPPED:
        raise KeyboardInterrupt  # the signal went to the workers themselves
    if outcome.first_failed is not None:
        raise TrainingFailed(outcome.first_failed, outcome.exit_code, folder)
    return read_run(folder)


def _follow(launch: Launch, title: str, open_screen: OpenScreen) -> Outcome:
    """Run the workers, and show events as they are written."""
    follower = EventFollower(launch.folder)
    read_s = 0.0
    with open_screen(title) as screen:
        for event in follower.read():
            screen.restore(event)

        def show_news() -> None:
            for event in follower.read():
                screen.show(event)

        def progress() -> None:
            nonlocal read_s
            if time.monotonic() - read_s > _POLL_S:
                read_s = time.monotonic()
                show_news()

        words = "stopping: workers finish the current step and save; Ctrl-C again ends them at once"
        try:
            return launch.run(screen.show_output, progress, on_interrupt=lambda: screen.note(words))
        finally:
            show_news()
