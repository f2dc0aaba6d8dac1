"""Textbook costs of averaging, in α and β alone.

Symbols: N ranks, M bytes of gradient, c the share of entries sent, log to base 2. These are the rows that papers
compare, unchanged; `headway.exchange.CostModel` predicts what exchanges take in practice.

Paper: arXiv 2312.02493.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from headway.network.link import Link

_FLOAT_BYTES = 4


@dataclass(frozen=True, kw_only=True)
class Textbook:
    """The costs of one problem, in seconds.

    Args:
        num_ranks: N.
        num_bytes: M, 4 bytes per parameter.
        ratio: c, in (0, 1].
        link: α and β.

    >>> problem = Textbook(num_ranks=8, num_bytes=4e8, ratio=0.01, link=Link(latency_s=0.004, bandwidth_bps=1e9))
    >>> round(problem.dense_ring_s, 3), round(problem.allgather_topk_s, 3), problem.best_compressed
    (5.656, 0.46, 'ar_topk_ring')
    """

    num_ranks: int
    num_bytes: float
    ratio: float
    link: Link

    def __post_init__(self) -> None:
        if self.num_ranks < 1:
            raise ValueError(f"num_ranks is {self.num_ranks}, but there must be 1 or more")
        if not self.num_bytes >= 0:
            raise ValueError(f"num_bytes is {self.num_bytes}, but must be 0 or more")
        if not 0 < self.ratio <= 1:
            raise ValueError(f"ratio is {self.ratio}, but must be above 0 and at most 1")

    @property
    def parameter_server_s(self) -> float:
        """2 α + 2 (N-1) M β."""
        return self._seconds(2 * min(self._others, 1), 2 * self._others * self.num_bytes)

    @property
    def dense_ring_s(self) -> float:
        """2 (N-1) α + 2 (N-1)/N M β."""
        return self._seconds(2 * self._others, 2 * self._others / self.num_ranks * self.num_bytes)

    @property
    def dense_tree_s(self) -> float:
        """2 log N α + 2 log N M β."""
        return self._seconds(2 * self._log, 2 * self._log * self.num_bytes)

    @property
    def all_gather_s(self) -> float:
        """Log N α + (N-1) M β."""
        return self._seconds(self._log, self._others * self.num_bytes)

    @property
    def allgather_topk_s(self) -> float:
        """Log N α + 2 (N-1) M c β: a value and an index, 4 bytes each."""
        return self._seconds(self._log, 2 * self._others * self._sent_bytes)

    @property
    def ar_topk_ring_s(self) -> float:
        """(2 (N-1) + log N) α + (2 (N-1)/N + log N) M c β."""
        ring = 2 * self._others / self.num_ranks
        return self._seconds(2 * self._others + self._log, (ring + self._log) * self._sent_bytes)

    @property
    def ar_topk_tree_s(self) -> float:
        """3 log N α + 3 log N M c β."""
        return self._seconds(3 * self._log, 3 * self._log * self._sent_bytes)

    @property
    def var_all_gather_s(self) -> float:
        """What VAR takes on top of STAR: an all-gather of one number per rank, about log N α."""
        return self._seconds(self._log, self._others * _FLOAT_BYTES)

    @property
    def ring_beats_tree(self) -> bool:
        """AR-Topk by ring over tree: α/β < M c (log N - (N-1)/N) / (N - 1 - log N)."""
        surplus_rounds = self._others - self._log
        saved_bytes = self._sent_bytes * (self._log - self._others / self.num_ranks)
        return saved_bytes > 0 if surplus_rounds <= 0 else self._alpha_over_beta < saved_bytes / surplus_rounds

    @property
    def ring_beats_allgather(self) -> bool:
        """AR-Topk by ring over AG-Topk: α/β < M c (1 - 1/N - log N / (2 (N-1)))."""
        if self._others == 0:
            return False
        share = 1 - 1 / self.num_ranks - self._log / (2 * self._others)
        return self._alpha_over_beta < self._sent_bytes * share

    @property
    def tree_beats_allgather(self) -> bool:
        """AR-Topk by tree over AG-Topk: α/β < M c ((N-1)/log N - 3/2)."""
        if self._others == 0:
            return False
        return self._alpha_over_beta < self._sent_bytes * (self._others / self._log - 1.5)

    @property
    def best_compressed(self) -> str:
        """The cheapest of AG-Topk, AR-Topk by ring and by tree, by the three rules; at N = 2 AG is never beaten."""
        by_sum, beaten = (
            ("ar_topk_ring", self.ring_beats_allgather)
            if self.ring_beats_tree
            else ("ar_topk_tree", self.tree_beats_allgather)
        )
        return by_sum if beaten else "allgather_topk"

    @property
    def costs_s(self) -> dict[str, float]:
        """The whole exchanges, by name."""
        return {
            "parameter_server": self.parameter_server_s,
            "dense_ring": self.dense_ring_s,
            "dense_tree": self.dense_tree_s,
            "allgather_topk": self.allgather_topk_s,
            "ar_topk_ring": self.ar_topk_ring_s,
            "ar_topk_tree": self.ar_topk_tree_s,
        }

    @property
    def _others(self) -> int:
        return self.num_ranks - 1

    @property
    def _log(self) -> float:
        return math.log2(self.num_ranks)

    @property
    def _sent_bytes(self) -> float:
        return self.num_bytes * self.ratio

    @property
    def _alpha_over_beta(self) -> float:
        return self.link.latency_s * self.link.bandwidth_bps / 8

    def _seconds(self, rounds: float, num_bytes: float) -> float:
        return rounds * self.link.latency_s + num_bytes * 8 / self.link.bandwidth_bps
