"""However a script ends, its ranks come down soon, with the script's own exit code and no trouble of ours.

No one file of the package is tested here, but all that has threads or connections.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.ending import SOON_S, run_to_the_end

SCRIPT = Path(__file__).with_name("scripts") / "ending.py"
VICTIM = 1
TOGETHER = {
    "just end": 0,
    "raise": 1,
    "exit": 3,
    "destroy": 0,
    "destroy, close": 0,
    "close": 0,
    "second model": 0,
    "closed, second model": 0,
    "second process group": 0,
}
"""The ways in which all ranks end alike, and their exit code."""
ALONE = {
    "one raises": 1,
    "one raises in a block": 1,
    "one raises, then closes": 1,
    "one exits": 3,
    "one just ends": 0,
    "backward raises": 1,
    "backward is caught": 0,
    "backward is caught, of one bucket": 0,
}
"""The ways in which rank 1 ends, or fails, alone, and its exit code: the others lose it."""


@pytest.fixture(scope="module")
def ends(tmp_path_factory):
    return run_to_the_end(SCRIPT, [*TOGETHER, *ALONE], tmp_path_factory.mktemp("ending"))


@pytest.mark.parametrize("how", TOGETHER)
def test_ranks_that_end_together_come_down_soon(ends, how):
    for end in ends[how]:
        end.check(TOGETHER[how], "ZeroDivisionError" if how == "raise" else None)


@pytest.mark.parametrize("how", ALONE)
def test_a_rank_that_ends_alone_is_lost_soon(ends, how):
    other, victim = ends[how]
    victim.check(ALONE[how], "ZeroDivisionError" if ALONE[how] == 1 else None)
    other.check(1, "PeerLost")
    (said,) = other.said
    assert said["lost"] == [VICTIM]
    assert said["at"] - victim.said[0]["at"] < SOON_S
