"""``headway plan --map``: the fastest exchange on each network."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.progress import track

from headway.cli.plan_tables import measured_speeds
from headway.compress import Shape
from headway.exchange import CostModel
from headway.network import Calibration, Link
from headway.report import draw_regime_map
from headway.tuner import contenders, find_regimes

_LATENCIES_S = tuple(np.geomspace(1e-4, 0.2, 121).tolist())
_BANDWIDTHS_BPS = tuple(np.geomspace(1e7, 2.5e10, 137).tolist())
_ANY_LINK = Link(latency_s=0.0, bandwidth_bps=1e9)


def draw(numels: Sequence[int], counts: Sequence[int], ratios: Sequence[float], output: Path) -> None:
    """Draw a panel for each number of workers and each ratio."""
    shape = Shape(tuple(numels))
    console = Console(stderr=True)
    speeds = {num_ranks: measured_speeds(contenders(), num_ranks) for num_ranks in counts}
    cases = list(itertools.product(counts, ratios))
    panels = []
    for num_ranks, ratio in track(cases, "regimes", console=console, disable=not console.is_terminal):
        model = CostModel(num_ranks, Calibration(link=_ANY_LINK), speeds[num_ranks])
        panels.append(find_regimes(model, shape, ratio, _LATENCIES_S, _BANDWIDTHS_BPS))
    columns = len(ratios) if len(counts) > 1 and len(ratios) > 1 else None
    draw_regime_map(
        panels, output, columns=columns, title=f"Fastest way to average {shape.numel / 1e6:.3g}M parameters"
    )
