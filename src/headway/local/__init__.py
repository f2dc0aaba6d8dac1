"""Local steps: every rank steps by itself, and ranks exchange the difference every so often."""

from headway.local.optimizer import LocalOptimizer
from headway.local.outer import Nesterov, Outer, Plain
from headway.local.presets import DiLoCo, SparseLoCo
from headway.local.wrapping import wrap

__all__ = ["DiLoCo", "LocalOptimizer", "Nesterov", "Outer", "Plain", "SparseLoCo", "wrap"]
