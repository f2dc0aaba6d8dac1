"""Collectives as data: one definition is verified, executed, costed and simulated."""

from headway.collectives.catalogue import ALGORITHMS, build, build_for
from headway.collectives.costs import CriticalPath, cheapest, cost, critical_path
from headway.collectives.council import Hearing, calls_worth_making
from headway.collectives.executor import NATIVE, Executor
from headway.collectives.neighbours import neighbour_exchange
from headway.collectives.schedule import Collective, Round, Schedule, Transfer
from headway.collectives.sharing import shared_payloads
from headway.collectives.verification import ScheduleError, verify

__all__ = [
    "ALGORITHMS",
    "NATIVE",
    "Collective",
    "CriticalPath",
    "Executor",
    "Hearing",
    "Round",
    "Schedule",
    "ScheduleError",
    "Transfer",
    "build",
    "build_for",
    "calls_worth_making",
    "cheapest",
    "cost",
    "critical_path",
    "neighbour_exchange",
    "shared_payloads",
    "verify",
]
