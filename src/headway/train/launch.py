"""Starting the workers of a run: on this machine's loopback, or on the emulated hosts of a lab."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headway.lab import Action, Lab, Outcome, Progress, Scenario, run_on_loopback
from headway.lab.links import link_table
from headway.report.events import EventLog
from headway.train.checkpoints import steps_of
from headway.train.worker import START

STOP_GRACE_S = 120.0
"""How long workers may take to finish their step and write a checkpoint after Ctrl-C."""
LOOPBACK = "loopback"
_LOG_LEVEL = "TORCH_CPP_LOG_LEVEL"
"""torch warns of hosts that have no name, as in a lab."""


@dataclass(frozen=True, kw_only=True)
class Watcher:
    """Who is told of workers while they run."""

    on_line: Callable[[int, str], None]
    """Takes the rank and a line that it has printed."""
    on_progress: Callable[[], None]
    """Called many times a second, by the thread that waits for the workers."""
    on_interrupt: Callable[[], None]
    """Called when Ctrl-C was pressed, and workers are given time to save."""


@dataclass(frozen=True, kw_only=True)
class Launch:
    """How to start a run.

    Args:
        folder: The run directory, with its configuration.
        num_workers: How many.
        scenario: The network to emulate; None for loopback.
        port: Where workers meet on loopback; any that is free, if not given.
        seed: Of the emulated network.
    """

    folder: Path
    num_workers: int
    scenario: Scenario | None = None
    port: int | None = None
    seed: int = 0

    def run(self, watcher: Watcher) -> Outcome:
        """Run the workers until all have ended; Ctrl-C lets them save a checkpoint first."""
        command = [sys.executable, "-c", START, str(self.folder)]
        options: dict[str, Any] = {
            "env": {_LOG_LEVEL: os.environ.get(_LOG_LEVEL, "ERROR")},
            "output": watcher.on_line,
            "interrupt_grace_s": STOP_GRACE_S,
            "on_interrupt": watcher.on_interrupt,
        }
        if self.scenario is None:
            return run_on_loopback(
                self.num_workers, command, port=self.port, on_progress=watcher.on_progress, **options
            )
        with closing(EventLog(self.folder)) as log:
            first_step = max(steps_of(self.folder, rank=0), default=0)
            scenario = self.scenario.by_steps()  # which workers announce
            notes = LabNotes(scenario, self.num_workers, log, first_step)

            def progress(now: Progress) -> None:
                notes.step = now.step
                watcher.on_progress()

            with (
                notes.taking_warnings(),
                Lab(self.num_workers, scenario, seed=self.seed, on_action=notes.take) as lab,
            ):
                return lab.run(command, on_progress=progress, **options)


class LabNotes:
    """Writes what the emulated network is really like into the events of a run, for comparison with the estimate.

    Args:
        scenario: That the lab follows.
        num_hosts: There are.
        log: The events of the run.
        first_step: That training goes on from.
    """

    def __init__(self, scenario: Scenario, num_hosts: int, log: EventLog, first_step: int = 0) -> None:
        self._scenario = scenario
        self._num_hosts = num_hosts
        self._log = log
        self._first_step = first_step
        self.step: int | None = None
        """The last one that rank 0 has begun."""

    def take(self, action: Action) -> None:
        """Note an action of the scenario."""
        if action.kind == "phase":
            self._log.write("phase", **self._phase(action.phase))
        else:
            ranks = ", ".join(map(str, action.ranks))
            self._log.write("notice", step=self._now, text=f"the scenario: {action.kind} rank {ranks}")

    @contextmanager
    def taking_warnings(self) -> Iterator[None]:
        """Note warnings, such as that of a saturated relay, as long as this lasts."""
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            warnings.showwarning = lambda message, *_, **__: self._log.write(
                "notice", step=self._now, text=str(message)
            )
            yield

    @property
    def _now(self) -> int:
        return self._first_step if self.step is None else self.step

    def _phase(self, number: int | None) -> dict[str, Any]:
        links = link_table(self._scenario, self._num_hosts, number)
        between = [(a, b) for a in range(self._num_hosts) for b in range(self._num_hosts) if a != b]
        step = self._now
        start = None if number is None else self._scenario.phases[number].start
        if start is not None and start.at_step is not None and self.step is not None:
            step = start.at_step  # progress is a little behind
        return {
            "step": step,
            "name": f"{self._scenario.name} {0 if number is None else number + 1}",
            "latency_s": max((float(links.latency_s[pair]) for pair in between), default=None),
            "bandwidth_bps": min((float(links.bandwidth_bps()[pair]) for pair in between), default=None),
        }
