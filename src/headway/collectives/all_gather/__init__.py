"""All-gather: every rank ends with every rank's message. One algorithm per file."""

from headway.collectives.all_gather.bruck import bruck
from headway.collectives.all_gather.one_shot import one_shot
from headway.collectives.all_gather.recursive_doubling import recursive_doubling
from headway.collectives.all_gather.ring import ring

__all__ = ["bruck", "one_shot", "recursive_doubling", "ring"]
