"""Collectives as data: one definition can be verified, executed, costed and simulated."""

from headway.collectives.catalogue import ALGORITHMS, AUTO, NATIVE, build, build_for, register_algorithm
from headway.collectives.control_round import RankReports, pings_worth_sending
from headway.collectives.costs import CriticalPath, critical_path, shared_payloads
from headway.collectives.executor import Executor
from headway.collectives.members import Members
from headway.collectives.neighbours import neighbour_exchange
from headway.collectives.schedule import Collective, Round, Schedule, Transfer, make_schedule
from headway.collectives.verification import ScheduleError, verify

__all__ = [
    "ALGORITHMS",
    "AUTO",
    "NATIVE",
    "Collective",
    "CriticalPath",
    "Executor",
    "Members",
    "RankReports",
    "Round",
    "Schedule",
    "ScheduleError",
    "Transfer",
    "build",
    "build_for",
    "critical_path",
    "make_schedule",
    "neighbour_exchange",
    "pings_worth_sending",
    "register_algorithm",
    "shared_payloads",
    "verify",
]
