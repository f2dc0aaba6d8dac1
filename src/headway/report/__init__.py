"""Pictures and pages of what was planned and what happened."""

from headway.report.pair_matrix import draw_pair_matrix
from headway.report.regime_map import draw_regime_map

__all__ = ["draw_pair_matrix", "draw_regime_map"]
