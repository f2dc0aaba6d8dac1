"""The exception tree."""

from __future__ import annotations

import pickle

import pytest

from headway import MismatchError, PeerLost
from headway.collectives import ScheduleError


@pytest.mark.parametrize(
    "error",
    [
        ScheduleError("reason", rank=1, round=None, chunk=3),
        PeerLost([3, 1], "all_reduce", 2.0),
        MismatchError(["a", "b"]),
    ],
)
def test_errors_survive_a_pickle(error):
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again), vars(again)) == (type(error), str(error), vars(error))
