"""A rank's own replica of a model: what gossip and local steps, which train without DDP, have in common."""

from headway.replica.flat import CARRIED, FlatView
from headway.replica.model import check_agreement, make_equal, moved_parameters, shape_of
from headway.replica.plain_data import copied
from headway.replica.wrapped import WrappedOptimizer

__all__ = [
    "CARRIED",
    "FlatView",
    "WrappedOptimizer",
    "check_agreement",
    "copied",
    "make_equal",
    "moved_parameters",
    "shape_of",
]
