"""The control loop, and the tuner that chooses plans: predicted times and gains, Pareto front, policies."""

from headway.tuner.adaptive import AdaptiveChooser
from headway.tuner.building import make_loop
from headway.tuner.candidates import WarmUp, all_plans, plans_at, ratios_between
from headway.tuner.choosing import Choice, Chooser, FusionChooser, Situation
from headway.tuner.comparison import Comparison, Option
from headway.tuner.config import Adaptive, Fixed
from headway.tuner.decision import Cause, Decision, DecisionLog, plan_as_dict
from headway.tuner.front import Front, pareto_front
from headway.tuner.gains import GainModel
from headway.tuner.link_tracker import GivenLink, LinkTracker
from headway.tuner.loop import ControlLoop, LoopConfig
from headway.tuner.objectives import Objectives
from headway.tuner.pacing import Pace, Pacing, paces_between
from headway.tuner.policies import POLICIES, Balanced, Goodput, Knee, Policy, Shortest, policy_of
from headway.tuner.regimes import Regimes, contenders, find_regimes
from headway.tuner.rounds import RoundSchedule
from headway.tuner.step_reports import StepReport
from headway.tuner.times import TimeModel
from headway.tuner.transport import RoundRequest, Transport

__all__ = [
    "POLICIES",
    "Adaptive",
    "AdaptiveChooser",
    "Balanced",
    "Cause",
    "Choice",
    "Chooser",
    "Comparison",
    "ControlLoop",
    "Decision",
    "DecisionLog",
    "Fixed",
    "Front",
    "FusionChooser",
    "GainModel",
    "GivenLink",
    "Goodput",
    "Knee",
    "LinkTracker",
    "LoopConfig",
    "Objectives",
    "Option",
    "Pace",
    "Pacing",
    "Policy",
    "Regimes",
    "RoundRequest",
    "RoundSchedule",
    "Shortest",
    "Situation",
    "StepReport",
    "TimeModel",
    "Transport",
    "WarmUp",
    "all_plans",
    "contenders",
    "find_regimes",
    "make_loop",
    "paces_between",
    "pareto_front",
    "plan_as_dict",
    "plans_at",
    "policy_of",
    "ratios_between",
]
