"""What is known of the network: the link model, what things cost on it, and what the traffic tells of it."""

from headway.network.calibrated import CollectiveCost, cheapest_algorithm, collective_cost, schedule_of
from headway.network.calibration import Calibration, calibrate
from headway.network.collective_table import CollectiveTable
from headway.network.estimator import Change, Estimate, Estimator, Observation
from headway.network.link import Link
from headway.network.overhead import Overhead
from headway.network.pairs import PairMatrix, probe_pairs
from headway.network.textbook import Textbook

__all__ = [
    "Calibration",
    "Change",
    "CollectiveCost",
    "CollectiveTable",
    "Estimate",
    "Estimator",
    "Link",
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
