"""Starting the workers of a run, on loopback or on the emulated hosts of a lab, if the machine can hold them."""

from __future__ import annotations

import importlib.util
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headway.gossip import topology_of
from headway.lab import Action, Lab, Outcome, Progress, Scenario, run_on_loopback
from headway.lab.links import link_table
from headway.report.events import EventLog
from headway.train.checkpoints import steps_of
from headway.train.samples import BatchOrder
from headway.train.settings import TrainSettings
from headway.train.worker import START

STOP_GRACE_S = 120.0
"""Time for workers to finish their step and write a checkpoint after Ctrl-C."""
LOOPBACK = "loopback"
_LOG_LEVEL = "TORCH_CPP_LOG_LEVEL"
"""torch warns about hosts without a name, such as those of a lab."""
_WORKER_BYTES = 400e6
"""Memory of a worker with a small model, including torch, without its data."""
_NUM_COPIES = 3
"""Copies of the data while it is loaded."""


@dataclass(frozen=True, kw_only=True)
class Launch:
    """The workers of a run.

    Args:
        folder: The run directory, with its configuration.
        num_workers: Number of workers.
        scenario: The network to emulate; None for loopback.
        port: Port of the rendezvous on loopback; None for a free one.
        seed: Seed of the emulated network.
    """

    folder: Path
    num_workers: int
    scenario: Scenario | None = None
    port: int | None = None
    seed: int = 0

    def run(
        self,
        on_line: Callable[[int, str], None],
        on_progress: Callable[[], None],
        on_interrupt: Callable[[], None],
    ) -> Outcome:
        """Run the workers until all have ended; Ctrl-C lets them save a checkpoint first.

        Args:
            on_line: Called with a rank and a line that it printed.
            on_progress: Called many times a second, by the thread that waits for the workers.
            on_interrupt: Called when Ctrl-C was pressed, and workers have time to save.
        """
        command = [sys.executable, "-c", START, str(self.folder)]
        options: dict[str, Any] = {
            "env": {_LOG_LEVEL: os.environ.get(_LOG_LEVEL, "ERROR")},
            "output": on_line,
            "interrupt_grace_s": STOP_GRACE_S,
            "on_interrupt": on_interrupt,
        }
        if self.scenario is None:
            return run_on_loopback(self.num_workers, command, port=self.port, on_progress=on_progress, **options)
        with closing(EventLog(self.folder)) as log:
            first_step = max(steps_of(self.folder, rank=0), default=0)
            scenario = self.scenario.by_steps()  # which workers announce
            recorder = LabRecorder(scenario, self.num_workers, log, first_step)

            def progress(now: Progress) -> None:
                recorder.step = now.step
                on_progress()

            with (
                recorder.recording_warnings(),
                Lab(self.num_workers, scenario, seed=self.seed, on_action=recorder.record) as lab,
            ):
                return lab.run(command, on_progress=progress, **options)


def check_machine(num_workers: int, settings: TrainSettings) -> None:
    """Raise `ValueError` if this machine cannot run that many workers with these settings."""
    if num_workers < 1:
        raise ValueError(f"the number of workers is {num_workers}, but must be 1 or more")
    if settings.tensorboard and importlib.util.find_spec("tensorboard") is None:
        raise ValueError("tensorboard is not installed: pip install 'headway[tensorboard]'")
    if settings.gossip_algorithm is not None:
        topology_of(settings.topology, num_workers)
    task = settings.load_task()
    parts = (task.train.inputs, task.train.targets, task.test.inputs, task.test.targets)
    each_bytes = _WORKER_BYTES + _NUM_COPIES * sum(part.numel() * part.element_size() for part in parts)
    most = max(1, int(free_bytes() / each_bytes))
    if num_workers > most:
        raise ValueError(
            f"{num_workers} workers are too many for this machine: each needs {each_bytes / 1e6:.0f} MB, and "
            f"{free_bytes() / 1e9:.1f} GB are free; use at most {most}"
        )
    BatchOrder(len(task.train), settings.batch_size, 0, num_workers, settings.seed)  # rejects too few samples


def free_bytes() -> float:
    """Return the memory that is available without swapping."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return 1024.0 * int(line.split()[1])
    return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES"))


class LabRecorder:
    """Writes the true state of the emulated network into the events of a run, for comparison with the estimate.

    Args:
        scenario: The scenario of the lab.
        num_hosts: Number of emulated hosts.
        log: The events of the run.
        first_step: The step at which training starts or resumes.
    """

    def __init__(self, scenario: Scenario, num_hosts: int, log: EventLog, first_step: int = 0) -> None:
        self._scenario = scenario
        self._num_hosts = num_hosts
        self._log = log
        self._first_step = first_step
        self.step: int | None = None
        """The last step that rank 0 has begun."""

    def record(self, action: Action) -> None:
        """Write an action of the scenario."""
        if action.kind == "phase":
            self._log.write("phase", **self._phase(action.phase))
        else:
            ranks = ", ".join(map(str, action.ranks))
            self._log.write("notice", step=self._now, text=f"the scenario: {action.kind} rank {ranks}")

    @contextmanager
    def recording_warnings(self) -> Iterator[None]:
        """Write warnings, such as that of a saturated relay, inside this context."""
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
