"""Compilation ahead of the first step."""

from __future__ import annotations

import torch

from headway._compile import compiling_alone
from headway.kernels.blocks import largest_magnitude
from headway.kernels.gain import gain_curve
from headway.kernels.indices import decode_indices, encode_indices, index_bytes
from headway.kernels.memory import Memory
from headway.kernels.noise import noise_key
from headway.kernels.quantizers import dequantize, quantize, quantize_sign, quantized_bytes
from headway.kernels.rounding import rounding_gain
from headway.kernels.scatter import scale, scatter_add
from headway.kernels.select import select_topk
from headway.kernels.sparse import add_message, message_bytes
from headway.kernels.values import VALUE_FORMATS, decode_values

_GRADIENT_DTYPES = (torch.float32, torch.float16, torch.bfloat16)

_warm = False


def warm_up() -> None:
    """Compile every kernel, or load it from the cache: about ten seconds once per machine, half a second after that.

    Called by ``attach`` and by the CLI, so that no training step has to compile. Processes that start together wait for
    the first of them. Further calls do nothing.
    """
    global _warm
    if _warm:
        return
    with compiling_alone(largest_magnitude):
        _call_everything()
    _warm = True


def _call_everything() -> None:
    """Call every kernel with every type of its arguments."""
    x = torch.linspace(-1.0, 1.0, 3000)
    for dtype in _GRADIENT_DTYPES:
        memory = Memory(x.numel())
        for _ in range(2):  # without a remembered threshold, and with one that holds
            memory.residual.zero_()
            memory.select(x.to(dtype), 30)
        memory.accumulate(x.to(dtype))
        memory.accumulate_with_gain_curves(x.to(dtype))
        gain_curve(x.to(dtype))
        rounding_gain(x.to(dtype), 4)
    memory.select(torch.full_like(x, torch.inf), 1)
    for value_format in VALUE_FORMATS:
        selection = memory.select(x, 30, value_format=value_format)
        decode_values(selection.payload, 30, value_format, out=selection.values)
        memory.take(selection.indices)
    memory.select(torch.zeros_like(x), x.numel())
    indices = select_topk(x, 30)
    message = torch.empty(index_bytes(x.numel(), 30), dtype=torch.uint8)
    encode_indices(indices, x.numel(), out=message)
    scatter_add(x.clone(), decode_indices(message, x.numel(), 30), torch.zeros(30))
    scale(x.clone(), indices, 0.5)
    message = torch.empty(message_bytes(x.numel(), 30, "fp32"), dtype=torch.uint8)
    encode_indices(indices, x.numel(), out=message[: index_bytes(x.numel(), 30)])
    add_message(message, 30, "fp32", out=x.clone())
    for step in (None, 0.1):
        message = torch.empty(quantized_bytes(x.numel(), 1, step=step), dtype=torch.uint8)
        quantize(x, 1, noise_key(0, 0, 0), step=step, out=message)
        dequantize(message, 1, step=step, out=torch.empty_like(x))
    message = torch.empty(quantized_bytes(x.numel(), 1), dtype=torch.uint8)
    quantize_sign(x, out=message)
