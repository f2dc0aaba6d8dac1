"""Broadcast: every rank ends with the root's payload. One algorithm per file."""

from headway.collectives.broadcast.chain import chain
from headway.collectives.broadcast.one_shot import one_shot
from headway.collectives.broadcast.scatter_gather import scatter_gather
from headway.collectives.broadcast.tree import tree
from headway.collectives.broadcast.two_shot import two_shot

__all__ = ["chain", "one_shot", "scatter_gather", "tree", "two_shot"]
