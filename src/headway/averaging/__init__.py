"""Averaging step after step: executor, control loop, averager, engine thread and records, as one. No DDP in here."""

from headway.averaging.averaging import Averaging
from headway.averaging.handle import Handle
from headway.averaging.statistics import Statistics

__all__ = ["Averaging", "Handle", "Statistics"]
