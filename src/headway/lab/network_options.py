"""The network to emulate, as options of the command line."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from headway.lab.scenario import LinkSpec, Scenario
from headway.lab.toml import ScenarioError, load_scenario, preset_names
from headway.units import parse_duration_s, parse_rate_bps, parse_share


@dataclass(frozen=True, kw_only=True)
class NetworkOptions:
    """A scenario by name or file, or one link for all hosts, as the user wrote it. The metadata is the CLI's help."""

    scenario: str | None = field(
        default=None, metadata={"help": "Scenario: a preset (headway emulate --list) or a TOML file."}
    )
    latency: str | None = field(
        default=None, metadata={"help": "One-way latency, such as 20ms; instead of --scenario."}
    )
    bandwidth: str | None = field(
        default=None, metadata={"help": "Bandwidth of every NIC in each direction, such as 100mbps."}
    )
    jitter: str | None = field(default=None, metadata={"help": "Variation of the latency, such as 2ms."})
    loss: str | None = field(default=None, metadata={"help": "Share of packets lost, such as 0.1%."})
    bandwidth_scale: float = field(default=1.0, metadata={"help": "Multiply every bandwidth of the scenario."})
    stretch: float = field(default=1.0, metadata={"help": "Multiply every time and step of the scenario."})

    @property
    def is_given(self) -> bool:
        """Whether there is a network to emulate."""
        return any((self.scenario, self.latency, self.bandwidth, self.jitter, self.loss))

    @property
    def label(self) -> str:
        """The network in a few words."""
        if self.scenario is not None:
            return Path(self.scenario).stem
        parts = (("", self.latency), ("", self.bandwidth), ("jitter ", self.jitter), ("loss ", self.loss))
        return ", ".join(f"{name}{value}" for name, value in parts if value is not None)

    def as_dict(self) -> dict[str, Any]:
        """Return the options as plain data, with an absolute path of the scenario's file."""
        options = asdict(self)
        if self.scenario is not None and self.scenario not in preset_names():
            options["scenario"] = str(Path(self.scenario).resolve())
        return options

    def build(self) -> Scenario:
        """Return the scenario.

        Raises:
            ScenarioError: There is no such scenario, or a figure cannot be parsed.
        """
        return self._unscaled().scaled(bandwidth=self.bandwidth_scale, time=self.stretch)

    def _unscaled(self) -> Scenario:
        if self.scenario is not None:
            names = ("latency", "bandwidth", "jitter", "loss")
            given = [f"--{name}" for name in names if getattr(self, name) is not None]
            if given:
                raise ScenarioError(f"{', '.join(given)} cannot go with --scenario: write it into the scenario's file")
            return load_scenario(self.scenario)
        return Scenario(
            name="flags",
            link=LinkSpec(
                latency_s=self._parse("latency", parse_duration_s),
                bandwidth_bps=self._parse("bandwidth", parse_rate_bps),
                jitter_s=self._parse("jitter", parse_duration_s),
                loss=self._parse("loss", parse_share),
            ),
        )

    def _parse(self, name: str, parse: Callable[[str], float]) -> float | None:
        text = getattr(self, name)
        try:
            return None if text is None else parse(text)
        except ValueError as error:
            raise ScenarioError(f"--{name}: {error}") from None
