"""Exchanges by all-gather: every rank sends its own message, and adds up all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headway.collectives import Collective
from headway.compress import Compressor, Shape
from headway.errors import MessageError
from headway.exchange.base import Channel, Job, Traffic, as_float32


@dataclass(frozen=True)
class Gather:
    """AG-Topk and its kin: whatever the compressor makes of G, from every rank to every rank.

        average = 1/N sum over ranks of C(g + residual),  residual = g + residual - C(g + residual)

    **Cost**: one all-gather; N - 1 messages a rank, decoded and added in order of rank, which makes ranks equal to
    the bit.
    **Error**: the compressor's, fed back.
    """

    compressor: Compressor
    algorithm: str

    def traffic(self, shape: Shape) -> Sequence[Traffic]:
        """Return one all-gather of a message."""
        return [Traffic(Collective.ALL_GATHER, self.algorithm, self.compressor.message_bytes(shape))]

    def run(self, job: Job, channel: Channel) -> float:
        """Compress, gather, add up."""
        compressed = self.compressor.compress(job.gradient, job.memory, job.key(channel.rank))
        messages = channel.all_gather(compressed.message, self.algorithm)
        total = as_float32(job.gradient).zero_()
        for rank, message in enumerate(messages):
            try:
                self.compressor.add(message, job.memory.shape, total)
            except MessageError as error:
                raise error.from_peer(rank) from error
        job.gradient.copy_(total.div_(channel.num_ranks))
        return compressed.gain
