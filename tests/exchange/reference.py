"""The exchanges as the papers define them, in plain numpy, written without a look at the package."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

Arrays = list[np.ndarray]


def num_kept(ratio: float, numel: int) -> int:
    return max(1, math.ceil(round(ratio * numel, 9)))


def top_indices(x: np.ndarray, k: int) -> np.ndarray:
    """The k largest magnitudes; of equal ones, those with the lower index."""
    return np.sort(np.argsort(-np.abs(x), kind="stable")[:k])


def keep_own_topk(g: np.ndarray, sizes: list[int], ratio: float) -> np.ndarray:
    """What a worker sends of g: the top k of each part."""
    sent, start = np.zeros_like(g), 0
    for size in sizes:
        part = g[start : start + size]
        kept = top_indices(part, num_kept(ratio, size)) + start
        sent[kept] = g[kept]
        start += size
    return sent


def average_of_sparse(gradients: Arrays, residuals: Arrays, sizes: list[int], ratio: float) -> np.ndarray:
    """A2: every worker sends its own top-k."""
    total = np.zeros_like(gradients[0])
    for gradient, residual in zip(gradients, residuals, strict=True):
        g = gradient + residual
        sent = keep_own_topk(g, sizes, ratio)
        residual[:] = g - sent
        total += sent
    return total / len(gradients)


def average_at(gradients: Arrays, residuals: Arrays, indices: np.ndarray) -> np.ndarray:
    """A3, steps 4 and 5: values at the same indices from everybody."""
    average = np.zeros_like(gradients[0])
    for gradient, residual in zip(gradients, residuals, strict=True):
        residual += gradient
        average[indices] += residual[indices] / len(gradients)
        residual[indices] = 0
    return average


def star(gradients: Arrays, residuals: Arrays, ratio: float, step: int) -> np.ndarray:
    w = step % len(gradients)
    g = gradients[w] + residuals[w]
    return average_at(gradients, residuals, top_indices(g, num_kept(ratio, g.size)))


def var(gradients: Arrays, residuals: Arrays, ratio: float) -> np.ndarray:
    sums = [gradient + residual for gradient, residual in zip(gradients, residuals, strict=True)]
    picked = [top_indices(g, num_kept(ratio, g.size)) for g in sums]
    energies = [np.square(g[kept].astype(np.float64)).sum() for g, kept in zip(sums, picked, strict=True)]
    return average_at(gradients, residuals, picked[int(np.argmax(energies))])


def union(gradients: Arrays, residuals: Arrays, ratio: float, fill: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """A10, with room that is left over filled up."""
    sums = [gradient + residual for gradient, residual in zip(gradients, residuals, strict=True)]
    num_named = max(1, num_kept(ratio, sums[0].size) // len(sums))
    named = np.unique(np.concatenate([top_indices(g, num_named) for g in sums]))
    return average_at(gradients, residuals, fill(named))
