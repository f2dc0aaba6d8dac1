"""Scripts that end in some way: run them on ranks, and look at how each rank has come down."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.forked import ForkedScripts

SOON_S = 15.0
"""How long a process may take from the end of its script until its exit handlers have run, on a busy machine.

Its own deadlines are far shorter: see tests/collectives/test_ends.py.
"""
_AT_ONCE = 6


@dataclass(frozen=True)
class End:
    """How a rank has ended."""

    said: list[dict[str, Any]]
    """The lines of JSON that the script has printed; the last has the time, "at"."""
    left_at: float
    code: int
    errors: str

    def check(self, code: int, error: str | None) -> None:
        """Assert the exit code, that the rank came down soon, and that stderr holds the script's own error only."""
        assert self.code == code, self.errors
        assert self.left_at - self.said[-1]["at"] < SOON_S
        assert self.errors.count("Traceback") - self.errors.count("direct cause") == (error is not None), self.errors
        assert error is None or error in self.errors.splitlines()[-1]
        for trouble in ("Exception in thread", "Exception ignored", "terminate called"):
            assert trouble not in self.errors


def run_to_the_end(script: Path, ways: Sequence[str], folder: Path, num_ranks: int = 2) -> dict[str, list[End]]:
    """Run ``script STORE RANK WAY`` on all ranks, for each way to end; a few at once, since they mostly wait."""
    ends: dict[str, list[End]] = {}
    for first in range(0, len(ways), _AT_ONCE):
        together = ways[first : first + _AT_ONCE]
        with ForkedScripts(folder, has_real_end=True) as scripts:
            for number, way in enumerate(together):
                for rank in range(num_ranks):
                    scripts.start(script, str(folder / f"store-{first + number}"), str(rank), way)
            codes = scripts.wait(timeout_s=90)
            found = [_end_of(scripts, place, code) for place, code in enumerate(codes)]
        ends |= {way: found[num_ranks * number :][:num_ranks] for number, way in enumerate(together)}
    return ends


def _end_of(scripts: ForkedScripts, place: int, code: int) -> End:
    errors = scripts.errors(place)
    lines = [json.loads(line) for line in scripts.outputs([place], timeout_s=1)[place].splitlines()]
    assert lines, f"exit code {code}\n{errors}"
    assert "left_at" in lines[-1], f"exit code {code}, after {lines}\n{errors}"
    return End(lines[:-1], lines[-1]["left_at"], code, errors)
