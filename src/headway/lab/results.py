"""Measurements and results of a run: traffic, load of the relay, exit codes."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from headway.lab.state import Network

_WINDOW_S = 1.0
SATURATED_LOAD = 0.85
SATURATED_LATENESS_S = 0.002


@dataclass(frozen=True, kw_only=True)
class Counters:
    """Traffic by [source, target], headers included."""

    num_bytes: npt.NDArray[np.int64]
    num_packets: npt.NDArray[np.int64]
    num_lost: npt.NDArray[np.int64]

    def since(self, before: Counters) -> Counters:
        """Return the traffic since an earlier reading."""
        return Counters(
            num_bytes=self.num_bytes - before.num_bytes,
            num_packets=self.num_packets - before.num_packets,
            num_lost=self.num_lost - before.num_lost,
        )


@dataclass(frozen=True, kw_only=True)
class RelayLoad:
    """Load of the relay; past saturation, measurements show the relay rather than the network."""

    cpu_share: float
    """Share of one core."""
    mean_lateness_s: float
    num_packets: int
    num_failed_writes: int
    """Packets that a host's device did not accept; there should be none."""

    @property
    def is_saturated(self) -> bool:
        """Whether the relay was too busy to emulate the network."""
        return (
            self.cpu_share > SATURATED_LOAD or self.mean_lateness_s > SATURATED_LATENESS_S or self.num_failed_writes > 0
        )


class LoadMeter:
    """Measures the load in windows of about a second, and remembers the busiest."""

    def __init__(self, network: Network, cpu_s: Callable[[], float]) -> None:
        self._network, self._cpu_s = network, cpu_s
        self._last = self._reading()
        self.now = self.busiest = _load_between(self._last, self._last)

    def read(self) -> RelayLoad:
        """Return the load of the last full window; to be called often."""
        reading = self._reading()
        if reading.time_s - self._last.time_s >= _WINDOW_S:
            self._take(reading)
        return self.now

    def finish(self) -> RelayLoad:
        """Return the load of the busiest window, the last and perhaps shorter one included."""
        self._take(self._reading())
        return self.busiest

    def _take(self, reading: _Reading) -> None:
        self.now = _load_between(self._last, reading)
        self.busiest = max(self.busiest, self.now, key=lambda load: (load.is_saturated, load.cpu_share))
        self._last = reading

    def _reading(self) -> _Reading:
        control = self._network.control[0]
        return _Reading(
            time.monotonic(),
            self._cpu_s(),
            float(control["late_s"]),
            int(control["num_delivered"]),
            int(control["num_failed_writes"]),
        )


class _Reading(NamedTuple):
    time_s: float
    cpu_s: float
    late_s: float
    num_delivered: int
    num_failed_writes: int


def _load_between(before: _Reading, after: _Reading) -> RelayLoad:
    num_packets = after.num_delivered - before.num_delivered
    return RelayLoad(
        cpu_share=(after.cpu_s - before.cpu_s) / max(after.time_s - before.time_s, 1e-3),
        mean_lateness_s=(after.late_s - before.late_s) / max(num_packets, 1),
        num_packets=num_packets,
        num_failed_writes=after.num_failed_writes - before.num_failed_writes,
    )


@dataclass(frozen=True, kw_only=True)
class Progress:
    """State of a running command."""

    elapsed_s: float
    phase: int | None
    step: int | None
    counters: Counters
    load: RelayLoad


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How workers ended."""

    exit_codes: tuple[int, ...]
    """By rank, as in a shell: 128 + n for a process ended by signal n."""
    first_failed: int | None
    """The rank that failed first by itself, and not through a ``kill`` event or because the run was ended."""
    elapsed_s: float
    tails: tuple[tuple[str, ...], ...]
    """The last lines that each rank printed."""

    @property
    def exit_code(self) -> int:
        """The exit code of the first rank that failed, or 0."""
        return 0 if self.first_failed is None else self.exit_codes[self.first_failed]


@dataclass(frozen=True, kw_only=True)
class RunResult(Outcome):
    """How a run in the lab ended."""

    counters: Counters
    """The traffic of this run."""
    load: RelayLoad
    """The relay's load in the busiest second of this run."""
