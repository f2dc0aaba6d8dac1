"""Emulated hosts and links: any torchrun-style script, unchanged, on a network that is bad in a way you can repeat."""

from headway.lab.conductor import Action
from headway.lab.control import Control
from headway.lab.emulator import Lab, SaturationWarning
from headway.lab.relay import RelayLoad
from headway.lab.results import Counters, Progress, RunResult
from headway.lab.scenario import Event, HostRule, Link, PairRule, Phase, Scenario, When
from headway.lab.toml import ScenarioError, load_scenario, preset_names

__all__ = [
    "Action",
    "Control",
    "Counters",
    "Event",
    "HostRule",
    "Lab",
    "Link",
    "PairRule",
    "Phase",
    "Progress",
    "RelayLoad",
    "RunResult",
    "SaturationWarning",
    "Scenario",
    "ScenarioError",
    "When",
    "load_scenario",
    "preset_names",
]
