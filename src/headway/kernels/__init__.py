"""Loops over flat arrays: select, add and extract, count, pack, quantise. They know nothing about ranks.

On the CPU they are compiled by numba, release the GIL and run at the speed of memory; for tensors elsewhere the same
functions use torch operations.
"""

from headway.kernels.gain import GAIN_RATIOS, GainCurve, gain_curve
from headway.kernels.indices import decode_indices, encode_indices, index_bytes
from headway.kernels.memory import Memory, Selection
from headway.kernels.noise import noise_key
from headway.kernels.quantizers import dequantize, quantize, quantize_sign, quantized_bytes
from headway.kernels.rounding import rounding_gain
from headway.kernels.scatter import gather, scatter_add
from headway.kernels.select import select_topk
from headway.kernels.sparse import add_message, message_bytes
from headway.kernels.values import VALUE_FORMATS, ValueFormat, decode_values, encode_values, value_bytes
from headway.kernels.velocity import Momentum, Velocity
from headway.kernels.warmup import warm_up

__all__ = [
    "GAIN_RATIOS",
    "VALUE_FORMATS",
    "GainCurve",
    "Memory",
    "Momentum",
    "Selection",
    "ValueFormat",
    "Velocity",
    "add_message",
    "decode_indices",
    "decode_values",
    "dequantize",
    "encode_indices",
    "encode_values",
    "gain_curve",
    "gather",
    "index_bytes",
    "message_bytes",
    "noise_key",
    "quantize",
    "quantize_sign",
    "quantized_bytes",
    "rounding_gain",
    "scatter_add",
    "select_topk",
    "value_bytes",
    "warm_up",
]
