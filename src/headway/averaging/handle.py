"""What a script sees of its averaging, whether it holds a hook or an optimizer of local steps."""

from __future__ import annotations

from abc import abstractmethod
from typing import TypeVar

from headway.averaging.averaging import Averaging
from headway.exchange import ExchangeRecord, Plan
from headway.network import NetworkView
from headway.tuner import Decision

H = TypeVar("H", bound="Handle")


class Handle:
    """Tells of the averaging behind it; closed at the end of a ``with`` block."""

    _averaging: Averaging

    @property
    def plan(self) -> Plan:
        """The plan in force; with local steps, its ``local_steps`` is H."""
        return self._averaging.plan

    @property
    def history(self) -> tuple[Decision, ...]:
        """The latest decisions about the plan, oldest first: what was known, what was chosen, and why.

        With local steps, their steps count exchanges.
        """
        return self._averaging.decisions

    @property
    def records(self) -> tuple[ExchangeRecord, ...]:
        """The latest exchanges of this rank, oldest first."""
        return self._averaging.records

    @property
    def network(self) -> NetworkView | None:
        """The network as the traffic shows it; None if it is not followed, or there is only one rank."""
        return self._averaging.network

    @abstractmethod
    def abandon(self) -> None:
        """Give up before `close`, where this rank has failed: other ranks lose it now, and not by a deadline."""

    @abstractmethod
    def close(self) -> None:
        """Release threads and connections; a second call does nothing."""

    def __enter__(self: H) -> H:
        return self

    def __exit__(self, error_type: type[BaseException] | None, *_: object) -> None:
        if error_type is not None:
            self.abandon()
        self.close()
