"""Goes on without ranks that are lost, and with those that have come back."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

from headway.averaging import Averaging
from headway.collectives import Members
from headway.elastic import Meetings
from headway.errors import HeadwayError, PeerLost
from headway.exchange import CostModel

_MOST_TRIES = 20
"""Attempts in a row in which yet another rank was lost."""


class GuestsWaiting(HeadwayError):
    """Ranks ask to be let in: all leave the exchange, and meet."""


class MakeAveraging(Protocol):
    """Makes the averaging of some ranks."""

    def __call__(self, members: Members, before: Averaging | None, costs: CostModel | None) -> Averaging:
        """Return it, given this rank's last one, and what is known of network and machine; all ranks call it."""


class Regrouping:
    """Makes a run's averaging anew, with the ranks that a meeting has agreed on.

    **Cost**: a meeting, new connections, and the common model for ranks that do not have it; if ranks have come back,
    also what attaching costs.

    Args:
        meetings: Where ranks meet.
        make: Makes the averaging.
    """

    def __init__(self, meetings: Meetings, make: MakeAveraging) -> None:
        self._meetings = meetings
        self._make = make

    @property
    def is_back(self) -> bool:
        """Whether an earlier process of this rank was lost: this one has to ask the others to be let in."""
        return self._meetings.is_back

    def check_for_guests(self, averaging: Averaging) -> None:
        """Raise `GuestsWaiting` on the first rank if others ask to be let in; those that wait for it are lost to it."""
        if averaging.executor.rank == 0 and self._meetings.has_guests():
            raise GuestsWaiting("ranks ask to be let in")

    def regroup(
        self, before: Averaging | None, error: HeadwayError | None, settle: Callable[[Averaging], None]
    ) -> None:
        """Meet, connect and settle, until nobody is lost meanwhile.

        Args:
            before: The averaging that has failed; None on a rank that asks to be let in.
            error: How it has failed.
            settle: Takes a new averaging over; called again with another one if a rank is lost meanwhile.

        Raises:
            HeadwayError: The store where ranks meet is gone.
        """
        if before is not None:
            _drop(before)
        for _ in range(_MOST_TRIES):
            lost = error.ranks if isinstance(error, PeerLost) else ()
            meeting = self._meetings.ask() if before is None and error is None else self._meetings.meet(lost)
            costs = None if before is None or meeting.guests else before.loop.current.costs
            averaging: Averaging | None = None
            try:
                averaging = self._make(meeting.members, before, costs)
                return settle(averaging)
            except HeadwayError as another:  # connecting to a rank that is gone fails without naming it
                error = another
                if averaging is not None:
                    _drop(averaging)
        raise HeadwayError(f"ranks were lost in {_MOST_TRIES} attempts in a row to go on without others") from error


def _drop(averaging: Averaging) -> None:
    """Close connections and threads that nobody waits for any more."""
    averaging.cut_off()
    averaging.close(time.monotonic())
