"""Plays a scenario: puts phases in force and triggers events, by the clock or by the script's steps.

`Timeline` is plain arithmetic on a time and a step, for a clock of any kind; `Playback` is a thread that waits for the
next action.
"""

from __future__ import annotations

import heapq
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from headway.lab.scenario import Scenario, resolve_ranks

ActionKind = Literal["phase", "cut", "heal", "kill", "freeze", "thaw"]

_HEALED_BY: dict[str, ActionKind] = {"cut": "heal", "freeze": "thaw"}
_LONGEST_WAIT_S = 1.0


@dataclass(frozen=True, kw_only=True)
class Action:
    """Something that the lab does now: put a phase in force, or act on ranks."""

    kind: ActionKind
    phase: int | None = None
    ranks: tuple[int, ...] = ()


@dataclass
class Timeline:
    """What is due of a scenario, and what has been done. It has no clock: time and step come from the caller."""

    scenario: Scenario
    num_hosts: int
    phase: int | None = None
    _is_fresh: bool = True
    _begun: set[int] = field(default_factory=set)
    _endings: list[tuple[float, int, Action]] = field(default_factory=list)

    def due(self, elapsed_s: float, step: int | None) -> list[Action]:
        """Return what has become due since the last call, in order."""
        actions = []
        phase = self.scenario.phase_at(elapsed_s, step)
        if phase != self.phase or self._is_fresh:
            self.phase, self._is_fresh = phase, False
            actions.append(Action(kind="phase", phase=phase))
        for number, event in enumerate(self.scenario.events):
            if number in self._begun or not event.start.has_come(elapsed_s, step):
                continue
            self._begun.add(number)
            ranks = tuple(resolve_ranks(event.ranks, self.num_hosts))
            actions.append(Action(kind=event.kind, ranks=ranks))
            if event.duration_s is not None:
                ending = Action(kind=_HEALED_BY[event.kind], ranks=ranks)
                heapq.heappush(self._endings, (elapsed_s + event.duration_s, number, ending))
        while self._endings and self._endings[0][0] <= elapsed_s:
            actions.append(heapq.heappop(self._endings)[2])
        return actions

    def next_time_s(self, elapsed_s: float) -> float | None:
        """Return when something is next due by the clock, or None."""
        times = [ending[0] for ending in self._endings]
        for phase in self.scenario.phases:
            times += [when.at_s for when in (phase.start, phase.end) if when is not None and when.at_s is not None]
        times += [
            event.start.at_s
            for number, event in enumerate(self.scenario.events)
            if number not in self._begun and event.start.at_s is not None
        ]
        return min((time_s for time_s in times if time_s > elapsed_s), default=None)


class Playback:
    """A timeline, a clock and a thread.

    Args:
        scenario: The scenario to play.
        num_hosts: Number of emulated hosts.
        act: Carries out an action.
        on_failure: Called with the exception if ``act`` raises one on the thread, which then ends.
    """

    def __init__(
        self,
        scenario: Scenario,
        num_hosts: int,
        act: Callable[[Action], None],
        on_failure: Callable[[Exception], None],
    ) -> None:
        self._timeline = Timeline(scenario, num_hosts)
        self._act = act
        self._on_failure = on_failure
        self._step: int | None = None
        self._changed = threading.Condition()
        self._stopping = self._has_new_step = False
        self._started_s = time.monotonic()
        self._thread = threading.Thread(target=self._run, name="headway-playback", daemon=True)

    @property
    def phase(self) -> int | None:
        """The phase in force."""
        return self._timeline.phase

    @property
    def step(self) -> int | None:
        """The last step that the script has announced."""
        return self._step

    @property
    def elapsed_s(self) -> float:
        """Time since the start."""
        return time.monotonic() - self._started_s

    def start(self) -> None:
        """Start the clock, and carry out what is due at once."""
        self._started_s = time.monotonic()
        self._act_on_due()
        self._thread.start()

    def announce(self, step: int) -> None:
        """Record a step of the script."""
        with self._changed:
            self._step, self._has_new_step = step, True
            self._changed.notify()

    def stop(self) -> None:
        """Stop; nothing happens after this returns."""
        with self._changed:
            self._stopping = True
            self._changed.notify()
        if self._thread.is_alive():
            self._thread.join()

    def _act_on_due(self) -> None:
        for action in self._timeline.due(self.elapsed_s, self._step):
            self._act(action)

    def _run(self) -> None:
        try:
            while not self._stopping:
                self._act_on_due()
                next_s = self._timeline.next_time_s(self.elapsed_s)
                wait_s = _LONGEST_WAIT_S if next_s is None else next_s - self.elapsed_s
                with self._changed:
                    if not self._stopping and not self._has_new_step:
                        self._changed.wait(min(max(wait_s, 0.0), _LONGEST_WAIT_S))
                    self._has_new_step = False
        except Exception as error:
            self._on_failure(error)
