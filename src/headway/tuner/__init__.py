"""Chooses the plan: what every candidate would take and teach, which are worth a thought, and which is best."""

from headway.tuner.chooser import Chooser
from headway.tuner.controller import Controller
from headway.tuner.decision import CAUSES, EXCHANGE_NAMES, Decision, describe
from headway.tuner.front import Front, pareto_front
from headway.tuner.gains import GainModel
from headway.tuner.grid import all_plans, candidates, ratios_between
from headway.tuner.journal import Journal
from headway.tuner.objectives import Objectives
from headway.tuner.outlook import Option, Outlook
from headway.tuner.policies import POLICIES, Balanced, Goodput, Knee, Policy, Shortest, policy_of
from headway.tuner.regimes import Regimes, find_regimes
from headway.tuner.times import TimeModel
from headway.tuner.warm_up import WarmUp

__all__ = [
    "CAUSES",
    "EXCHANGE_NAMES",
    "POLICIES",
    "Balanced",
    "Chooser",
    "Controller",
    "Decision",
    "Front",
    "GainModel",
    "Goodput",
    "Journal",
    "Knee",
    "Objectives",
    "Option",
    "Outlook",
    "Policy",
    "Regimes",
    "Shortest",
    "TimeModel",
    "WarmUp",
    "all_plans",
    "candidates",
    "describe",
    "find_regimes",
    "pareto_front",
    "policy_of",
    "ratios_between",
]
