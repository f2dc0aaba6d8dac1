"""The picture of an adaptive run: link, ratio, exchange, step time and gain, against the step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from headway.lab import Scenario


def real_link(scenario: Scenario, num_steps: int) -> list[tuple[float, float]]:
    """Return latency and bandwidth at every step, as the scenario has them."""
    found = []
    for step in range(num_steps):
        latency_s, bandwidth_bps = scenario.link.latency_s or 0.0, scenario.link.bandwidth_bps or 0.0
        for phase in scenario.phases:
            if (phase.start.at_step or 0) <= step:
                latency_s = scenario.link.latency_s if phase.link.latency_s is None else phase.link.latency_s
                bandwidth = phase.link.bandwidth_bps
                bandwidth_bps = scenario.link.bandwidth_bps if bandwidth is None else bandwidth
        found.append((latency_s, bandwidth_bps))
    return found


def draw(run: dict[str, Any], scenario: Scenario, path: Path) -> None:
    """Write the picture."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    steps = run["steps"]
    numbers = range(len(steps))
    real = real_link(scenario, len(steps))
    figure, axes = plt.subplots(5, 1, sharex=True, figsize=(9, 10), layout="constrained")
    latency, bandwidth, ratio, seconds, gain = axes
    latency.plot(numbers, [1e3 * each[0] for each in real], color="0.6", label="real")
    latency.plot(numbers, [1e3 * step.get("latency_s", float("nan")) for step in steps], label="estimate")
    latency.set(yscale="log", ylabel="latency, ms")
    latency.legend()
    bandwidth.plot(numbers, [each[1] / 1e6 for each in real], color="0.6")
    bandwidth.plot(numbers, [step.get("bandwidth_bps", float("nan")) / 1e6 for step in steps])
    bandwidth.set(yscale="log", ylabel="bandwidth, Mbps")
    for exchange in dict.fromkeys(step.get("exchange", "") for step in steps):
        there = [number for number in numbers if steps[number].get("exchange", "") == exchange]
        ratio.plot(there, [steps[number].get("ratio", 1.0) for number in there], ".", label=exchange)
    ratio.set(yscale="log", ylabel="ratio")
    ratio.legend()
    seconds.plot(numbers, [1e3 * step["seconds"] for step in steps])
    seconds.set(yscale="log", ylabel="step, ms")
    gain.plot(numbers, [step.get("gain", float("nan")) for step in steps])
    gain.set(yscale="log", ylabel="gain", xlabel="step")
    figure.suptitle(f"{run['name']} on {scenario.name}: {sum(step['seconds'] for step in steps):.0f} s")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=100)
    plt.close(figure)
