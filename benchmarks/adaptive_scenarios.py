"""The networks of ``benchmarks/adaptive.py`` and how they change, phases by step."""

from __future__ import annotations

from headway.lab import LinkSpec, Phase, Scenario, When, load_scenario

BANDWIDTH_SCALE = 0.04
PHASE_STEPS = {"c1": 40, "c2": 4}
"""Steps of a phase of c1, and of an epoch of c2."""
CHANGING = {
    "mixed": ((2, 500), (20, 100), (80, 20), (40, 200), (5, 50)),
    "poor": ((20, 30), (100, 5), (50, 10), (80, 20), (30, 5)),
}
"""Latency in ms and bandwidth in Mbps of phases of 40 steps."""
FOR_LOCAL_STEPS = {
    "slow": ((50, 5),),
    "rising": ((100, 2), (20, 50), (1, 1000), (50, 5)),
    "fast": ((1, 1000),),
}
"""The same, of phases that make 192 steps together: whole rounds of 8, 16 and 32 steps."""
LOCAL_NUM_STEPS = 192
NAMES = ("c1", "c2", *CHANGING, *FOR_LOCAL_STEPS)


def scenario_of(name: str) -> tuple[Scenario, int]:
    """Return a scenario with its phases by steps, and its number of steps."""
    if name in CHANGING:
        return _by_steps(name, CHANGING[name], 40)
    if name in FOR_LOCAL_STEPS:
        links = FOR_LOCAL_STEPS[name]
        return _by_steps(name, links, LOCAL_NUM_STEPS // len(links))
    if name not in PHASE_STEPS:
        raise ValueError(f"there is no scenario {name!r}: choose one of {', '.join(NAMES)}")
    full = load_scenario(name)
    unit = max(starts_of(full)) // (3 if name == "c1" else 44)
    played = full.scaled(bandwidth=BANDWIDTH_SCALE, time=PHASE_STEPS[name] / unit)
    return played, PHASE_STEPS[name] * (4 if name == "c1" else 48)


def _by_steps(name: str, links: tuple[tuple[int, int], ...], phase_steps: int) -> tuple[Scenario, int]:
    phases = tuple(
        Phase(start=When(at_step=phase_steps * number), link=LinkSpec(latency_s=ms / 1e3, bandwidth_bps=mbps * 1e6))
        for number, (ms, mbps) in enumerate(links)
    )
    return Scenario(name=name, link=phases[0].link, phases=phases), phase_steps * len(phases)


def repeated(scenario: Scenario, num_steps: int, times: int) -> Scenario:
    """Return a scenario whose phases start anew with every contender."""
    phases = [
        Phase(start=When(at_step=number * num_steps + (phase.start.at_step or 0)), link=phase.link)
        for number in range(times)
        for phase in scenario.phases
    ]
    return Scenario(name=scenario.name, link=scenario.link, phases=tuple(phases))


def starts_of(scenario: Scenario) -> list[int]:
    """Return the first step of each phase."""
    return [phase.start.at_step or 0 for phase in scenario.phases]
