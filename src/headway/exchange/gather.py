"""Exchanges by all-gather: every rank sends its own message, and adds up the messages of all ranks."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

from torch import Tensor

from headway.collectives import Collective
from headway.compress import Compressor, ErrorFeedback, LayerwiseTopK, MSTopK, Shape, StochasticQuantizer, TopK
from headway.errors import MessageError
from headway.exchange.base import Channel, Exchange, Job, Traffic
from headway.exchange.description import Description, GainRule
from headway.kernels import VALUE_FORMATS

_BY_GATHER = (Collective.ALL_GATHER,)
_NOT_FINITE = 255
"""All bytes of the message of a rank whose gradient has Inf or NaN: known before anything is decoded."""


class GatherExchange(Exchange):
    """A compressor with error feedback, and an all-gather of its messages.

        average = 1/N sum over ranks of C(g + residual),  residual = g + residual - C(g + residual)

    **Cost**: one all-gather; N - 1 messages a rank, decoded and added in order of rank, which makes ranks bitwise
    equal. **Error**: the compressor's, fed back. A rank whose G has Inf or NaN says so instead of sending any of it.
    """

    @abstractmethod
    def compressor(self, shape: Shape) -> Compressor:
        """Return the compressor for a bucket of this shape."""

    def traffic(self, shape: Shape, num_ranks: int) -> Sequence[Traffic]:
        num_bytes = self.compressor(shape).num_bytes(shape.numel)
        return [Traffic(Collective.ALL_GATHER, self.plan.algorithm, num_bytes)]

    def run(self, job: Job, channel: Channel) -> float:
        compressor, undo = self.compressor(job.memory.shape), job.undo.residual
        feedback = ErrorFeedback(compressor)
        compressed = feedback.compress(job.unadded, job.memory, job.key(channel.rank), undo=undo)
        if not compressed.is_finite:
            compressed.message.fill_(_NOT_FINITE)
        messages = channel.all_gather(compressed.message, self.plan.algorithm)
        if _has_nonfinite(messages):
            return job.reject()
        total = undo.zero_()
        for rank, message in enumerate(messages):
            try:
                compressor.add(message, job.key(rank), out=total)
            except MessageError as error:
                raise error.from_peer(rank) from error
        job.write(total.div_(channel.num_ranks))
        return compressed.gain


def _has_nonfinite(messages: Tensor) -> bool:
    """Return whether the message of any rank says that its gradient is not finite."""
    if messages.shape[1] == 0:
        return False
    suspicious = (messages[:, :4] == _NOT_FINITE).all(dim=1)
    return bool(suspicious.any()) and bool((messages[suspicious] == _NOT_FINITE).all(dim=1).any())


class AllGatherTopK(GatherExchange):
    """AG-Topk: every rank sends its own top-k."""

    description = Description(
        name="allgather_topk",
        label="all-gather top-k",
        summary="every rank's own top-k, by all-gather",
        collectives=_BY_GATHER,
        value_formats=VALUE_FORMATS,
        tuned_formats=("int8", "int4", "sign"),  # int8 teaches as much as fp32 in fewer bytes
        hue=0.58,
    )

    def compressor(self, shape: Shape) -> Compressor:
        del shape
        return TopK(self.plan.ratio, self.plan.values)


class LayerwiseTopKExchange(GatherExchange):
    """LWTopk: every rank sends the top-k of each of its tensors."""

    description = Description(
        name="layerwise_topk",
        label="layerwise top-k",
        summary="the top-k of each tensor, by all-gather",
        collectives=_BY_GATHER,
        value_formats=VALUE_FORMATS,
        gain_factor=0.9,
        variant_of="allgather_topk",
        is_candidate=False,  # never better than top-k of the whole bucket
        hue=0.5,
    )

    def compressor(self, shape: Shape) -> Compressor:
        return LayerwiseTopK(self.plan.ratio, self.plan.values, shape=shape)


class MSTopKExchange(GatherExchange):
    """MSTopk: as AG-Topk, with a threshold found by bisection."""

    description = Description(
        name="mstopk",
        label="MSTopk",
        summary="top-k by bisecting the threshold, by all-gather",
        collectives=_BY_GATHER,
        value_formats=VALUE_FORMATS,
        variant_of="allgather_topk",
        is_candidate=False,  # the same entries as top-k, found more slowly
        hue=0.66,
    )

    def compressor(self, shape: Shape) -> Compressor:
        del shape
        return MSTopK(self.plan.ratio, self.plan.values)


class QuantizedExchange(GatherExchange):
    """Every entry in 8 or 4 bits; what rounding takes away stays in the residual."""

    description = Description(
        name="quantized",
        label="quantized",
        summary="every entry in 8 or 4 bits, by all-gather",
        collectives=_BY_GATHER,
        bits=(8, 4),
        uses_ratio=False,
        gain_rule=GainRule.ALL,
        max_error=0.02,
        hue=0.38,
    )

    def compressor(self, shape: Shape) -> Compressor:
        del shape
        return StochasticQuantizer(bits=self.plan.bits)
