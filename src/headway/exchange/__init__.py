"""Every way to average a bucket, and the engine thread that does it."""

from headway.exchange.averager import Averager, Bucket
from headway.exchange.base import ALL_RANKS, Channel, Exchange, Job, Traffic, exchange_of
from headway.exchange.buffers import BUFFERS_EVERY, BufferAverager
from headway.exchange.catalogue import PLAIN
from headway.exchange.channel import ExecutorChannel
from headway.exchange.compute_speed import ComputeSpeed, measure_speed
from headway.exchange.control import CodeGain, Controller, GainCurves, StepPlan
from headway.exchange.costs import CostModel, CostTable, ExchangeCost
from headway.exchange.description import (
    EXCHANGES,
    Description,
    GainRule,
    default_candidates,
    register,
    unregister,
)
from headway.exchange.engine import Engine
from headway.exchange.gather import GatherExchange
from headway.exchange.layout import BucketLayout, Layout, parameters_of
from headway.exchange.machine_speeds import measure_speeds
from headway.exchange.memories import Memories
from headway.exchange.plan import Plan
from headway.exchange.records import (
    ExchangeRecord,
    History,
    TimedCollective,
    Totals,
    dense_bytes,
    saved_share,
)

__all__ = [
    "ALL_RANKS",
    "BUFFERS_EVERY",
    "EXCHANGES",
    "PLAIN",
    "Averager",
    "Bucket",
    "BucketLayout",
    "BufferAverager",
    "Channel",
    "CodeGain",
    "ComputeSpeed",
    "Controller",
    "CostModel",
    "CostTable",
    "Description",
    "Engine",
    "Exchange",
    "ExchangeCost",
    "ExchangeRecord",
    "ExecutorChannel",
    "GainCurves",
    "GainRule",
    "GatherExchange",
    "History",
    "Job",
    "Layout",
    "Memories",
    "Plan",
    "StepPlan",
    "TimedCollective",
    "Totals",
    "Traffic",
    "default_candidates",
    "dense_bytes",
    "exchange_of",
    "measure_speed",
    "measure_speeds",
    "parameters_of",
    "register",
    "saved_share",
    "unregister",
]
