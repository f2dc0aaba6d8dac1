"""Every way to average a bucket, and the engine thread that does it."""

from headway.exchange.advisor import Advisor
from headway.exchange.averager import Averager, Bucket
from headway.exchange.base import Channel, Exchange, Job, Traffic
from headway.exchange.catalogue import EXCHANGES, exchange_of
from headway.exchange.channel import ExecutorChannel
from headway.exchange.cost_table import CostTable
from headway.exchange.costs import CostModel, ExchangeCost
from headway.exchange.engine import Engine
from headway.exchange.layout import BucketLayout, Layout, parameters_of
from headway.exchange.memories import Memories
from headway.exchange.monitor import Monitor, NetworkView
from headway.exchange.plan import Plan
from headway.exchange.records import ExchangeRecord, History, TimedCollective, Totals
from headway.exchange.rehearsal import ComputeSpeed, kind_of, rehearse, warm_up

__all__ = [
    "EXCHANGES",
    "Advisor",
    "Averager",
    "Bucket",
    "BucketLayout",
    "Channel",
    "ComputeSpeed",
    "CostModel",
    "CostTable",
    "Engine",
    "Exchange",
    "ExchangeCost",
    "ExchangeRecord",
    "ExecutorChannel",
    "History",
    "Job",
    "Layout",
    "Memories",
    "Monitor",
    "NetworkView",
    "Plan",
    "TimedCollective",
    "Totals",
    "Traffic",
    "exchange_of",
    "kind_of",
    "parameters_of",
    "rehearse",
    "warm_up",
]
