"""What else a council is about: the interface of whoever chooses plans."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from headway.compress import Shape
from headway.exchange.plan import Plan
from headway.exchange.records import ExchangeRecord
from headway.kernels import GainCurve
from headway.network import Change, Link


class Advisor(Protocol):
    """Chooses plans: every rank reports, rank 0 decides, all adopt.

    Numbers are all that travels: ``num_reports`` from each rank, and ``num_answers`` back.
    """

    @property
    def num_reports(self) -> int:
        """How many numbers a rank reports."""

    @property
    def num_answers(self) -> int:
        """How many numbers rank 0 answers."""

    def plan_of(self, step: int) -> Plan:
        """Return the plan in force at a step."""

    def note_step(self, own_s: float, exposed_s: float) -> None:
        """Take in how long a step took beside the exchange, and how much longer the exchange made it."""

    def note_curves(self, gradient: GainCurve, total: GainCurve) -> None:
        """Take in what a bucket could send: of the gradient alone, and of its sum with the residual."""

    def open(self, step: int, shapes: Sequence[Shape], arrivals_s: Sequence[float]) -> list[float]:
        """Learn what buckets there are and when they come; return, at rank 0, the first answer."""

    def report(self, records: Sequence[ExchangeRecord]) -> list[float]:
        """Return what this rank has to say, the records since the last time among it."""

    def decide(
        self, step: int, reports: Tensor, link: Link, changes: Sequence[Change], *, is_steady: bool
    ) -> list[float]:
        """Return, at rank 0, the answer that counts from a step on; a link is steady if no change is suspected."""

    def adopt(self, answer: Sequence[float]) -> None:
        """Follow an answer from now on."""

    @property
    def is_restless(self) -> bool:
        """Whether more should be known soon, at rank 0."""
