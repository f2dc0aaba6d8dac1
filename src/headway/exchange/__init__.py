"""Every way to average a bucket, and the engine thread that does it."""

from headway.exchange.averager import Averager, Bucket
from headway.exchange.base import Exchange, Job
from headway.exchange.catalogue import EXCHANGES, exchange_of
from headway.exchange.channel import Channel, Traffic
from headway.exchange.engine import Engine
from headway.exchange.layout import BucketLayout, Layout, parameters_of
from headway.exchange.memories import Memories
from headway.exchange.plan import Plan
from headway.exchange.records import ExchangeRecord, History, Totals

__all__ = [
    "EXCHANGES",
    "Averager",
    "Bucket",
    "BucketLayout",
    "Channel",
    "Engine",
    "Exchange",
    "ExchangeRecord",
    "History",
    "Job",
    "Layout",
    "Memories",
    "Plan",
    "Totals",
    "Traffic",
    "exchange_of",
    "parameters_of",
]
