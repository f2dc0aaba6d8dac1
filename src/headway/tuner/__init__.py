"""Chooses the plan: what every candidate would take, and which is best."""

from headway.tuner.grid import candidates
from headway.tuner.outlook import Option, Outlook
from headway.tuner.regimes import Regimes, find_regimes

__all__ = ["Option", "Outlook", "Regimes", "candidates", "find_regimes"]
