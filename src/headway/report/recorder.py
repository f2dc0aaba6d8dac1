"""Writes a run directory from a training loop."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch.distributed as dist

from headway._version import __version__
from headway.ddp import HookState
from headway.gossip import GossipEvent, GossipOptimizer
from headway.local import LocalOptimizer
from headway.report.events import CONFIG_FILE, VERSION, EventLog, Listener, plain
from headway.report.reading import SUMS, Counted, Reading, read
from headway.tuner import Decision


class Recorder:
    """Writes the events of a run to a directory that ``headway report`` reads; ranks other than 0 write nothing.

        recorder = headway.report.Recorder("runs/mine", handle)
        for inputs, targets in loader:
            ...
            optimizer.step()
            recorder.step(loss=loss.item())
        recorder.close()

    The training clock stops from `pause` to `resume`: evaluation is not training.

    Args:
        folder: The run directory.
        handle: What `headway.attach`, `headway.local.wrap` or `headway.gossip.wrap` returned.
        about: More fields for the event "start", such as ``method`` and ``workload``.
        is_writer: Whether this process writes; by default rank 0 does.
        listener: Called with every event.
        begin_at: Step and training seconds to continue from, after a resume.
    """

    def __init__(
        self,
        folder: Path | str,
        handle: Counted,
        about: Mapping[str, Any] | None = None,
        *,
        is_writer: bool | None = None,
        listener: Listener = lambda event: None,
        begin_at: tuple[int, float] | None = None,
    ) -> None:
        self.step_number, self.time_s = begin_at or (0, 0.0)
        self._handle = handle
        self._before: Reading = read(handle)
        self._latest: Decision | GossipEvent | None = None
        self._resumed_s: float | None = time.perf_counter()
        """When the clock was started; None while it is stopped."""
        if is_writer is None:
            is_writer = not dist.is_initialized() or dist.get_rank() == 0
        self.log = EventLog(folder, listener) if is_writer else None
        if self.log is None:
            return
        if not (Path(folder) / CONFIG_FILE).exists():
            write_config(Path(folder), dict(about or {}))
        if begin_at is None:
            self._write("start", version=VERSION, headway=__version__, started_at=_now(), **(about or {}))
        else:
            self._write("resume", step=self.step_number, **(about or {}))

    def step(self, *, loss: float, lr: float | None = None, **more: Any) -> None:
        """Record a step that has ended: loss, traffic, where the time went, and any decisions."""
        if self._resumed_s is None:
            raise ValueError("the training clock is stopped: call resume() before the next step")
        now_s = time.perf_counter()
        step_s, self._resumed_s = now_s - self._resumed_s, now_s
        self.step_number += 1
        self.time_s += step_s
        if self.log is None:
            return
        now, before = read(self._handle), self._before
        self._before = now
        grown = {name: getattr(now, name) - getattr(before, name) for name in SUMS}
        self._write_news()
        self._write(
            "step",
            step=self.step_number,
            step_s=step_s,
            loss=loss,
            lr=lr,
            exchange=now.exchange,
            plan=now.plan,
            ratio=_mean(grown.pop("ratio_sum"), grown["num_exchanges"]),
            gain=_mean(grown.pop("gain_sum"), grown.pop("num_gains")),
            latency_s=now.latency_s,
            bandwidth_bps=now.bandwidth_bps,
            local_steps=now.local_steps,
            agreement=now.agreement,
            **grown,
            **more,
        )

    def pause(self) -> None:
        """Stop the training clock until `resume`."""
        if self._resumed_s is not None:
            self.time_s += time.perf_counter() - self._resumed_s
            self._resumed_s = None

    def resume(self) -> None:
        """Start the training clock again."""
        self._resumed_s = time.perf_counter()

    def note(self, kind: str, **fields: Any) -> None:
        """Write an event of another kind at the current step."""
        self._write(kind, step=self.step_number, **fields)

    def close(self, **fields: Any) -> None:
        """Write the event "end" and close the file; a second call does nothing."""
        if self.log is None:
            return
        self._write_news()
        self._write("end", step=self.step_number, **{"reason": "finished", **fields})
        self.log.close()
        self.log = None

    def _write_news(self) -> None:
        """Write decisions and other events of the handle that have not been written yet."""
        for news in self._news():
            self._latest = news
            if isinstance(news, Decision):
                self._write("decision", **self._at_a_step(news).as_dict())
            else:
                self._write("notice", step=news.step, text=news.text)

    def _at_a_step(self, decision: Decision) -> Decision:
        """Return a decision whose step is one of training: those of local steps count exchanges."""
        return replace(decision, step=self.step_number) if isinstance(self._handle, LocalOptimizer) else decision

    def _news(self) -> Sequence[Decision | GossipEvent]:
        """Return what came after the latest one written, which the handle may no longer keep."""
        kept: Sequence[Decision | GossipEvent] = ()
        if isinstance(self._handle, (HookState, LocalOptimizer)):
            kept = self._handle.history
        elif isinstance(self._handle, GossipOptimizer):
            kept = self._handle.events
        number = next((n for n, each in enumerate(kept) if each is self._latest), -1)
        return kept[number + 1 :]

    def _write(self, kind: str, **fields: Any) -> None:
        if self.log is not None:
            self.log.write(kind, time_s=self.time_s, **fields)


def write_config(folder: Path, settings: Mapping[str, Any]) -> None:
    """Write the configuration of a run, and the version of its directory."""
    folder.mkdir(parents=True, exist_ok=True)
    content = {"version": VERSION, "headway": __version__, **plain(settings)}
    partial = folder / f"{CONFIG_FILE}.{os.getpid()}"
    partial.write_text(json.dumps(content, indent=1) + "\n")
    os.replace(partial, folder / CONFIG_FILE)


def _mean(total: float, number: int) -> float | None:
    return total / number if number else None


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")
