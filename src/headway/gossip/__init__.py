"""Gossip: decentralised training, in which workers mix compressed models with their neighbours only."""

from headway.gossip.costs import gossip_cost, measure_compute_s
from headway.gossip.in_process import InProcessGossip
from headway.gossip.monitoring import GossipEvent, GossipStatistics
from headway.gossip.optimizer import GossipOptimizer
from headway.gossip.settings import ALGORITHMS
from headway.gossip.topology import GRAPHS, Topology, metropolis, register_topology, topology_of
from headway.gossip.wrapping import wrap

__all__ = [
    "ALGORITHMS",
    "GRAPHS",
    "GossipEvent",
    "GossipOptimizer",
    "GossipStatistics",
    "InProcessGossip",
    "Topology",
    "gossip_cost",
    "measure_compute_s",
    "metropolis",
    "register_topology",
    "topology_of",
    "wrap",
]
