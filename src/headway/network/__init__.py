"""The network: a model of the link, the cost of collectives on it, and its estimate from the traffic."""

from headway.network.calibration import Calibration, calibrate
from headway.network.costs import (
    CollectiveCost,
    CollectiveTable,
    Cost,
    Overhead,
    cheapest_algorithm,
    collective_cost,
    schedule_of,
)
from headway.network.estimator import MOST_CHANGES, Change, Estimate, Estimator, NetworkView, Observation
from headway.network.link import WORTH_FOLLOWING, Link
from headway.network.pairs import PairMatrix, probe_pairs
from headway.network.textbook import Textbook

__all__ = [
    "MOST_CHANGES",
    "WORTH_FOLLOWING",
    "Calibration",
    "Change",
    "CollectiveCost",
    "CollectiveTable",
    "Cost",
    "Estimate",
    "Estimator",
    "Link",
    "NetworkView",
    "Observation",
    "Overhead",
    "PairMatrix",
    "Textbook",
    "calibrate",
    "cheapest_algorithm",
    "collective_cost",
    "probe_pairs",
    "schedule_of",
]
