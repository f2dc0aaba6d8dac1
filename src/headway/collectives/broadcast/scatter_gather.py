"""Scatter and all-gather broadcast (van de Geijn)."""

from __future__ import annotations

from headway.collectives.patterns import Rounds, binomial_scatter, bruck_gather, relabel
from headway.collectives.schedule import Collective, Schedule, Transfer, make_schedule


def scatter_gather(num_ranks: int, root: int = 0) -> Schedule:
    """Scatter N chunks down a binomial tree, then all-gather them by Bruck's algorithm.

        t = 2 α log N + 2 (N - 1)/N M β

    **Cost**: at most ``2 * ceil(log2(N))`` rounds, at most ``2 * (N - 1) / N`` payloads. No rank is sent what it has.

    >>> len(scatter_gather(8).rounds)
    6

    Barnett et al., Interprocessor collective communication library, 1994.
    """
    rounds = _without_known_chunks(binomial_scatter(num_ranks) + bruck_gather(num_ranks), num_ranks)
    return make_schedule(
        Collective.BROADCAST, "scatter_gather", num_ranks, num_ranks, relabel(rounds, num_ranks, root), root=root
    )


def _without_known_chunks(rounds: Rounds, num_ranks: int) -> Rounds:
    """Keep of each transfer only the chunks that its target lacks; rank 0 starts with all."""
    lacks = [set() if rank == 0 else set(range(num_ranks)) for rank in range(num_ranks)]
    kept: Rounds = []
    for transfers in rounds:
        kept.append([])
        for transfer in transfers:
            for start, stop in _runs(sorted(lacks[transfer.dst].intersection(range(transfer.start, transfer.stop)))):
                kept[-1].append(Transfer(transfer.src, transfer.dst, start, stop))
            lacks[transfer.dst].difference_update(range(transfer.start, transfer.stop))
    return kept


def _runs(chunks: list[int]) -> list[tuple[int, int]]:
    """Return the runs of consecutive chunks.

    >>> _runs([1, 2, 5])
    [(1, 3), (5, 6)]
    """
    runs: list[tuple[int, int]] = []
    for chunk in chunks:
        if runs and runs[-1][1] == chunk:
            runs[-1] = (runs[-1][0], chunk + 1)
        else:
            runs.append((chunk, chunk + 1))
    return runs
