"""Emulated hosts and links: run any torchrun-style script, unchanged, on a reproducibly bad network."""

from headway.lab.control import Control
from headway.lab.emulator import Lab, SaturationWarning
from headway.lab.loopback import run_on_loopback
from headway.lab.playback import Action
from headway.lab.results import Counters, Outcome, Progress, RelayLoad, RunResult
from headway.lab.scenario import Event, HostRule, LinkSpec, PairRule, Phase, Scenario, When
from headway.lab.toml import ScenarioError, load_scenario, preset_names

__all__ = [
    "Action",
    "Control",
    "Counters",
    "Event",
    "HostRule",
    "Lab",
    "LinkSpec",
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
