"""All-reduce: every rank ends with the sum over ranks. One algorithm per file."""

from headway.collectives.all_reduce.halving_doubling import halving_doubling
from headway.collectives.all_reduce.one_shot import one_shot
from headway.collectives.all_reduce.recursive_doubling import recursive_doubling
from headway.collectives.all_reduce.ring import ring
from headway.collectives.all_reduce.star import star
from headway.collectives.all_reduce.tree import tree
from headway.collectives.all_reduce.two_shot import two_shot

__all__ = ["halving_doubling", "one_shot", "recursive_doubling", "ring", "star", "tree", "two_shot"]
