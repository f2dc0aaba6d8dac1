"""The options that say which network to emulate."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from headway.lab import Link, Scenario, ScenarioError, load_scenario, possible, preset_names, unprivileged
from headway.units import parse_duration_s, parse_rate_bps, parse_share


@dataclass(frozen=True, kw_only=True)
class NetworkOptions:
    """A scenario by name or file, or a link by its figures, as a user has written them."""

    scenario: str | None = None
    latency: str | None = None
    bandwidth: str | None = None
    jitter: str | None = None
    loss: str | None = None
    bandwidth_scale: float = 1.0
    stretch: float = 1.0

    @property
    def is_given(self) -> bool:
        """Whether a network is asked for at all."""
        return any((self.scenario, self.latency, self.bandwidth, self.jitter, self.loss))

    @property
    def label(self) -> str:
        """The network in a few words."""
        if self.scenario is not None:
            return Path(self.scenario).stem
        parts = (("", self.latency), ("", self.bandwidth), ("jitter ", self.jitter), ("loss ", self.loss))
        return ", ".join(f"{name}{value}" for name, value in parts if value is not None)

    def as_dict(self) -> dict[str, Any]:
        """Return the options as plain data that means the same from any folder."""
        options = asdict(self)
        if self.scenario is not None and self.scenario not in preset_names():
            options["scenario"] = str(Path(self.scenario).resolve())
        return options

    def build(self) -> Scenario:
        """Return the scenario.

        Raises:
            ScenarioError: There is no such scenario, or a figure cannot be read.
        """
        return self._unscaled().scaled(bandwidth=self.bandwidth_scale, time=self.stretch)

    def _unscaled(self) -> Scenario:
        flags = {
            "--latency": self.latency,
            "--bandwidth": self.bandwidth,
            "--jitter": self.jitter,
            "--loss": self.loss,
        }
        if self.scenario is not None:
            given = [flag for flag, value in flags.items() if value is not None]
            if given:
                raise ScenarioError(f"{', '.join(given)} cannot go with --scenario: write it into the scenario's file")
            return load_scenario(self.scenario)
        return Scenario(
            name="flags",
            link=Link(
                latency_s=_flag("--latency", self.latency, parse_duration_s),
                bandwidth_bps=_flag("--bandwidth", self.bandwidth, parse_rate_bps),
                jitter_s=_flag("--jitter", self.jitter, parse_duration_s),
                loss=_flag("--loss", self.loss, parse_share),
            ),
        )


def enter_user_namespace_if_needed() -> None:
    """Start this command anew in a user namespace, where a lab is possible in no other way."""
    if unprivileged.ENTERED_VARIABLE in os.environ or possible.may_make_namespaces():
        return
    if possible.missing_beside_privilege() is None and possible.may_make_user_namespaces():
        unprivileged.restart(sys.argv[1:])


def _flag(name: str, text: str | None, parse: Callable[[str], float]) -> float | None:
    try:
        return None if text is None else parse(text)
    except ValueError as error:
        raise ScenarioError(f"{name}: {error}") from None
