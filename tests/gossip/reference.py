"""The algorithms once more, in numpy and float64, all ranks at once: written from their equations alone.

What compression did to each message is given: ``noise[t][i]`` is C(z) - z of rank i in step t.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Move = Callable[[Array], Array]
"""From all models, a row each, to all local updates δ."""


def run(
    algorithm: str, weights: Array, start: Array, move: Move, noise: Array, consensus_step: float = 1.0
) -> tuple[Array, list[Array]]:
    """Return all models after as many steps as there is noise, and after each step."""
    num_ranks = len(weights)
    x = np.tile(start, (num_ranks, 1))
    known = x.copy()
    """What all ranks know of each model: x~ of ECD, x^ of CHOCO, C(x) of naive."""
    path = []
    for t, error in enumerate(noise, start=1):
        delta = move(x)
        if algorithm == "dpsgd":
            x = weights @ x + delta
        elif algorithm == "naive":
            x = weights @ known + delta
            known = x + error
        elif algorithm == "dcd":
            z = weights @ x + delta - x
            x = x + z + error
        elif algorithm == "ecd":
            new = weights @ known + delta
            z = (1 - t / 2) * x + (t / 2) * new
            known = (1 - 2 / t) * known + (2 / t) * (z + error)
            x = new
        elif algorithm == "choco":
            half = x + delta
            known = known + (half - known) + error
            x = half + consensus_step * (weights @ known - known)
        path.append(x.copy())
    return x, path
