"""However a script ends, its processes exit cleanly."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.ending import run_to_the_end

SCRIPT = Path(__file__).with_name("scripts") / "ending.py"
WAYS = {
    "just end": 0,
    "raise": 1,
    "exit": 3,
    "close": 0,
    "destroy": 0,
    "destroy, close": 0,
    "second optimizer": 0,
    "close, second optimizer": 0,
}


@pytest.fixture(scope="module")
def ends(tmp_path_factory):
    return run_to_the_end(SCRIPT, [*WAYS, "one exits"], tmp_path_factory.mktemp("ending"))


@pytest.mark.parametrize("how", WAYS)
def test_every_way_to_end_is_clean(ends, how):
    for end in ends[how]:
        end.check(WAYS[how], "ZeroDivisionError" if how == "raise" else None)


def test_a_rank_that_exits_alone_is_given_up_by_the_other(ends):
    left, gone = ends["one exits"]
    gone.check(3, None)
    left.check(0, None)
