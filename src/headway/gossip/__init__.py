"""Gossip: decentralised training, in which workers mix compressed models with their neighbours only."""

from headway.gossip.costs import GossipCost, gossip_cost, rehearsed_s
from headway.gossip.events import GossipEvent
from headway.gossip.optimizer import GossipOptimizer
from headway.gossip.settings import ALGORITHMS
from headway.gossip.statistics import GossipStatistics
from headway.gossip.together import Together
from headway.gossip.topology import Topology, metropolis, topology_of
from headway.gossip.wrapping import wrap

__all__ = [
    "ALGORITHMS",
    "GossipCost",
    "GossipEvent",
    "GossipOptimizer",
    "GossipStatistics",
    "Together",
    "Topology",
    "gossip_cost",
    "metropolis",
    "rehearsed_s",
    "topology_of",
    "wrap",
]
