"""Emulated hosts and links: any torchrun-style script, unchanged, on a network that is bad in a way you can repeat."""

from headway.lab.conductor import Action
from headway.lab.control import Control
from headway.lab.emulator import Lab, SaturationWarning
from headway.lab.loopback import run_on_loopback
from headway.lab.relay import RelayLoad
from headway.lab.results import Counters, Outcome, Progress, RunResult
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
    "Outcome",
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
    "run_on_loopback",
]
