"""What a lab tells of a run, while it runs and afterwards."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from headway.lab.relay import RelayLoad


@dataclass(frozen=True, kw_only=True)
class Counters:
    """What has gone from source to target, headers included: [source, target]."""

    num_bytes: npt.NDArray[np.int64]
    num_packets: npt.NDArray[np.int64]
    num_lost: npt.NDArray[np.int64]

    def since(self, before: Counters) -> Counters:
        """Return what has come since an earlier reading."""
        return Counters(
            num_bytes=self.num_bytes - before.num_bytes,
            num_packets=self.num_packets - before.num_packets,
            num_lost=self.num_lost - before.num_lost,
        )


@dataclass(frozen=True, kw_only=True)
class Progress:
    """Where a run stands."""

    elapsed_s: float
    phase: int | None
    step: int | None
    counters: Counters
    load: RelayLoad


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How workers ended."""

    exit_codes: tuple[int, ...]
    """By rank, as a shell gives them: 128 + n for a process that signal n ended."""
    first_failed: int | None
    """The rank that failed first of its own, and not by a ``kill`` of the scenario or because we ended it."""
    elapsed_s: float
    tails: tuple[tuple[str, ...], ...]
    """The last lines that each rank printed."""

    @property
    def exit_code(self) -> int:
        """That of the first rank that failed, or 0."""
        return 0 if self.first_failed is None else self.exit_codes[self.first_failed]


@dataclass(frozen=True, kw_only=True)
class RunResult(Outcome):
    """How a run in the lab ended."""

    counters: Counters
    """The traffic of this run."""
    load: RelayLoad
    """The relay's load in the busiest second of this run."""
