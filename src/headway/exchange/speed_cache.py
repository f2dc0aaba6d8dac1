"""Remembers how fast this machine computes, so that not every start of training has to time it."""

from __future__ import annotations

import json
import os
import platform
import time
import zlib
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

import torch

from headway._version import __version__
from headway.exchange.base import exchange_of
from headway.exchange.compute_speed import ComputeSpeed
from headway.exchange.plan import Form, Plan

_LIFETIME_S = 86_400
"""A measurement made while the machine was busy is corrected a day later."""


class SpeedCache:
    """The speeds of this machine in the user's cache folder, one file for each number of ranks and setting.

    Speeds depend on how many ranks compute at the same time, on torch's threads, and on the code: a file is for one
    of each. Exchanges of a user's own are not kept, since nobody tells when their code changes. A file that cannot be
    read or written is as good as none.

    Args:
        num_ranks: How many ranks compute at the same time.
    """

    def __init__(self, num_ranks: int) -> None:
        described = (__version__, _newest_change(), torch.__version__, _processor(), os.cpu_count())
        key = zlib.crc32(repr((*described, torch.get_num_threads(), num_ranks)).encode())
        self.path = _cache_folder() / f"speeds-{key:08x}.json"

    def read(self) -> dict[Form, ComputeSpeed]:
        """Return what is known and not too old."""
        try:
            if time.time() - self.path.stat().st_mtime > _LIFETIME_S:
                return {}
            rows = json.loads(self.path.read_text())
            return {(row["exchange"], row["values"], row["bits"]): ComputeSpeed(**row["speed"]) for row in rows}
        except (OSError, ValueError, TypeError, KeyError):
            return {}

    def write(self, speeds: Mapping[Form, ComputeSpeed]) -> None:
        """Add speeds to what is known; the file is there at once and whole, or not at all."""
        known = {**self.read(), **speeds}
        rows = [
            {"exchange": exchange, "values": values, "bits": bits, "speed": asdict(speed)}
            for (exchange, values, bits), speed in known.items()
        ]
        draft = self.path.with_suffix(f".{os.getpid()}")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            draft.write_text(json.dumps(rows))
            draft.replace(self.path)
        except OSError:
            with suppress(OSError):
                draft.unlink()


def worth_keeping(plans: Iterable[Plan]) -> set[Form]:
    """Return the forms of plans whose exchanges are Headway's own."""
    return {plan.form for plan in plans if type(exchange_of(plan)).__module__.startswith("headway.")}


def _cache_folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "headway"


def _newest_change() -> float:
    """Return when a file that decides about speeds was last changed."""
    rooms = Path(__file__).parent.parent
    files = (file for room in ("exchange", "compress", "kernels") for file in (rooms / room).glob("*.py"))
    return max((file.stat().st_mtime for file in files), default=0.0)


def _processor() -> str:
    """Return the model of the processor, as far as it is known."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line for line in lines if line.startswith("model name")), platform.machine())
