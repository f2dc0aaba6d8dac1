"""The kernels in torch operations, for tensors that are not on the CPU.

Simple rather than fast. Results equal those of the loops to the bit, except for sums, whose order differs.
The public functions dispatch here by the device of their argument, after checking types and sizes. Not yet run on an
accelerator: the tests compare these functions with the loops on CPU tensors.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from headway.errors import MessageError
from headway.kernels import noise
from headway.kernels._lanes import KEY_MASK, NAN_KEY
from headway.kernels.arrays import SCALE_BLOCK as _BLOCK
from headway.kernels.arrays import index_dtype
from headway.kernels.radix import BIN_SHIFT, NUM_BINS

if TYPE_CHECKING:
    from headway.kernels.gain import GainCurve
    from headway.kernels.indices import Layout
    from headway.kernels.values import ValueFormat

CHUNK = 1 << 20
"""Entries processed at a time where temporary tensors would otherwise be several times as large as the gradient."""

_MASK_32 = 0xFFFFFFFF


def select_topk(x: Tensor, k: int) -> Tensor:
    """See ``select.select_topk``; k is at least 1."""
    keys = _keys(x.detach().reshape(-1).to(torch.float32)).clamp_(max=int(NAN_KEY))
    cut = keys.topk(k, sorted=False).values.min()
    picked, ties = keys > cut, keys == cut
    picked |= ties & (ties.cumsum(0) <= k - picked.sum())
    return picked.nonzero().flatten().to(index_dtype(x.numel()))


def accumulate(residual: Tensor, gradient: Tensor, undo: Tensor | None) -> None:
    """Add the gradient; leave the residual from before in ``undo``, which may be the gradient: a chunk at a time."""
    if undo is None:
        residual.add_(gradient)
        return
    saved = undo.view(-1)
    for at in range(0, residual.numel(), CHUNK):
        part = slice(at, at + CHUNK)
        total = residual[part] + gradient[part]
        saved[part] = residual[part]
        residual[part] = total


def extract_topk(residual: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Take the top k out of the residual and drop Inf and NaN there; return indices and values of the top k."""
    nothing = torch.empty(0, dtype=index_dtype(residual.numel()), device=residual.device)
    indices = select_topk(residual, k) if k else nothing
    values = residual[indices.long()]
    residual[indices.long()] = 0.0
    drop_nonfinite(residual)
    return indices, values


def drop_nonfinite(x: Tensor) -> None:
    """Set Inf and NaN to zero."""
    x.nan_to_num_(nan=0.0, posinf=0.0, neginf=0.0)


def gain_curve(x: Tensor) -> GainCurve:
    """See ``gain.gain_curve``; takes room for a chunk, whatever the size of the tensor."""
    from headway.kernels.gain import curve_from_counts

    flat = x.detach().reshape(-1)
    counts = torch.zeros(NUM_BINS, dtype=torch.int64, device=x.device)
    energy = torch.zeros((), dtype=torch.float64, device=x.device)
    for part in torch.split(flat, CHUNK):
        entries = part.to(torch.float32)
        counts += torch.bincount(_keys(entries) >> int(BIN_SHIFT), minlength=NUM_BINS)
        energy += entries.double().nan_to_num_(nan=0.0, posinf=0.0, neginf=0.0).square_().sum()
    return curve_from_counts(counts.cpu().numpy(), x.numel(), float(energy))


def encode_values(values: Tensor, value_format: ValueFormat, out: Tensor) -> None:
    """See ``values.encode_values``."""
    if value_format == "fp32":
        out.copy_(values.view(torch.uint8))
    elif value_format == "fp16":
        halves = values.to(torch.float16)
        overflowed = halves.isinf() & values.isfinite()
        largest = torch.finfo(torch.float16).max
        _write(out, torch.where(overflowed, halves.sign() * largest, halves))
    else:
        from headway.kernels.values import CODES

        code = CODES[value_format]
        blocks = _in_blocks(values, code.block)
        if code.bits == 1:
            scales, codes = _mean_magnitudes(values, code.block), blocks >= 0
        else:
            scales = _largest(blocks)
            scales[scales < torch.finfo(torch.float32).tiny * code.levels] = 0.0
            codes = (blocks * _inverse(float(code.levels), scales)).round().nan_to_num(0.0) + code.levels
        _write(out, scales, _pack(_flat(codes, values.numel()).to(torch.uint8), code.bits))


def decode_values(payload: Tensor, value_format: ValueFormat, out: Tensor) -> None:
    """See ``values.decode_values``."""
    if value_format == "fp32":
        out.copy_(payload.view(torch.float32))
    elif value_format == "fp16":
        out.copy_(payload.view(torch.float16)[: out.numel()])
    else:
        from headway.kernels.values import CODES

        code = CODES[value_format]
        scales, packed = _split_scales(payload, out.numel(), code.block)
        codes = _unpack(packed, code.bits)[: out.numel()].to(torch.float32)
        shares = 2 * codes - 1 if code.bits == 1 else (codes - code.levels) / code.levels
        out.copy_(_flat(_in_blocks(shares, code.block) * scales, out.numel()))


def encode_indices(indices: Tensor, layout: Layout, out: Tensor) -> None:
    """See ``indices.encode_indices``."""
    wide, num_low = indices.long(), layout.num_low_bits
    low_bits = torch.empty(wide.numel(), num_low, dtype=torch.uint8, device=wide.device)
    for bit in range(num_low):
        low_bits[:, bit] = (wide >> bit) & 1
    high_bits = torch.zeros(8 * (layout.num_bytes - layout.num_low_bytes), dtype=torch.uint8, device=wide.device)
    high_bits[(wide >> num_low) + torch.arange(wide.numel(), device=wide.device)] = 1
    out.zero_()
    _write(out[: layout.num_low_bytes], _pack(low_bits.flatten(), 1))
    _write(out[layout.num_low_bytes :], _pack(high_bits, 1))


def decode_indices(message: Tensor, numel: int, layout: Layout, out: Tensor) -> None:
    """See ``indices.decode_indices``."""
    k, num_low = out.numel(), layout.num_low_bits
    places = _unpack(message[layout.num_low_bytes :], 1).nonzero().flatten()
    if places.numel() != k:
        raise MessageError(f"the bitmap of the indices tells of {places.numel()}, not of {k}")
    indices = (places - torch.arange(k, device=message.device)) << num_low
    low_bits = _unpack(message[: layout.num_low_bytes], 1)[: k * num_low].view(k, num_low)
    for bit in range(num_low):
        indices |= low_bits[:, bit].long() << bit
    if k and (bool((indices.diff() <= 0).any()) or int(indices[-1]) >= numel):
        raise MessageError(f"the indices do not ascend within [0, {numel})")
    out.copy_(indices)


def quantize(x: Tensor, bits: int, key: int, step: float | None, out: Tensor) -> int:
    """See ``quantizers.quantize``."""
    zero, half_range = _grid(bits)
    flat = x.detach().reshape(-1).to(torch.float32)
    blocks = _in_blocks(flat)
    if step is None:
        scales = _largest(blocks)
        scales[scales < torch.finfo(torch.float32).tiny * half_range] = 0.0
        inverse, header, num_saturated = _inverse(half_range, scales), scales, 0
    else:
        distance = torch.tensor(step, dtype=torch.float32, device=x.device)
        inverse, header = 1 / distance, out[:0]
        num_saturated = int((~(flat.abs() <= distance * half_range)).sum())
    levels = (blocks.nan_to_num(0.0) * inverse).clamp(-half_range, half_range) + zero % 1
    below = levels.floor()
    goes_up = (_units(key, blocks) < levels - below).to(torch.float32)
    codes = torch.where(inverse > 0, zero // 1 + below + goes_up, zero // 1).to(torch.uint8)
    _write(out, header, _pack(_flat(codes, flat.numel()), bits))
    return num_saturated


def rounding_error(x: Tensor, bits: int) -> tuple[float, float, float]:
    """Return E|C(x) - x|² and |x|² of the finite blocks, and the number of the others, a chunk at a time.

    See ``rounding.rounding_gain``.
    """
    zero, half_range = _grid(bits)
    sums = torch.zeros(3, dtype=torch.float64, device=x.device)
    for part in torch.split(x.detach().reshape(-1), CHUNK):
        entries = part.to(torch.float32)
        blocks, num_padded = _in_blocks(entries), -entries.numel() % _BLOCK
        scales = _largest(blocks)
        is_left_out = scales.isnan()
        blocks, scales = blocks.masked_fill(is_left_out, 0.0), scales.masked_fill(is_left_out, 0.0)
        is_sent = scales >= torch.finfo(torch.float32).tiny * half_range
        level = blocks * torch.where(is_sent, half_range / scales, 0.0) + zero % 1
        rest = level - level.floor()
        rest[-1, _BLOCK - num_padded :] = 0.0
        spread = (rest * (1 - rest)).sum(1, dtype=torch.float64)
        rounded, squares = (scales.double() / half_range).square().flatten() * spread, blocks.double().square().sum(1)
        error = torch.where(is_sent.flatten(), rounded, squares).sum()
        sums += torch.stack([error, squares.sum(), is_left_out.sum()])
    error, energy, num_left_out = sums.tolist()
    return error, energy, num_left_out


def quantize_sign(x: Tensor, out: Tensor) -> None:
    """See ``quantizers.quantize_sign``."""
    flat = x.detach().reshape(-1).to(torch.float32)
    _write(out, _mean_magnitudes(flat, _BLOCK), _pack((flat >= 0).to(torch.uint8), 1))


def dequantize(message: Tensor, bits: int, step: float | None, out: Tensor) -> None:
    """See ``quantizers.dequantize``."""
    zero, half_range = _grid(bits)
    if step is None:
        scales, packed = _split_scales(message, out.numel())
    else:
        packed, scales = message, torch.tensor(step, dtype=torch.float32, device=out.device) * half_range
    codes = _unpack(packed, bits)[: out.numel()]
    out.copy_(_flat((_in_blocks(codes.to(torch.float32)) - zero) / half_range * scales, out.numel()))


def _keys(entries: Tensor) -> Tensor:
    """Return the bits of float32 entries without their signs."""
    return entries.view(torch.int32).bitwise_and(int(KEY_MASK))


def _write(out: Tensor, *sections: Tensor) -> None:
    """Write the bytes of the sections one after the other; the rest of ``out`` is padding."""
    at = 0
    for section in sections:
        num_bytes = section.numel() * section.element_size()
        if num_bytes:
            out[at : at + num_bytes] = section.flatten().view(torch.uint8)
        at += num_bytes


def _in_blocks(flat: Tensor, block: int = _BLOCK) -> Tensor:
    """Return rows of the size of a block, the last one filled up with zeros."""
    return torch.nn.functional.pad(flat, (0, -flat.numel() % block)).view(-1, block)


def _flat(blocks: Tensor, numel: int) -> Tensor:
    return blocks.flatten()[:numel]


def _split_scales(payload: Tensor, numel: int, block: int = _BLOCK) -> tuple[Tensor, Tensor]:
    num_scale_bytes = 4 * -(-numel // block)
    return payload[:num_scale_bytes].view(torch.float32).unsqueeze(1), payload[num_scale_bytes:]


def _largest(blocks: Tensor) -> Tensor:
    """Return max |x| of each row, NaN where an entry is not finite."""
    largest = blocks.abs().amax(1, keepdim=True)
    return torch.where(largest.isfinite(), largest, torch.nan)


def _mean_magnitudes(flat: Tensor, block: int) -> Tensor:
    """Return the mean of |x| in each block, NaN where an entry is not finite."""
    blocks = _in_blocks(flat, block)
    lengths = _in_blocks(torch.ones_like(flat), block).sum(1, dtype=torch.float64, keepdim=True)
    means = (blocks.abs().sum(1, dtype=torch.float64, keepdim=True) / lengths).to(torch.float32)
    return torch.where(_largest(blocks).isnan(), torch.nan, means)


def _inverse(numerator: float, scales: Tensor) -> Tensor:
    return torch.where(scales > 0, numerator / scales, 0.0)


def _grid(bits: int) -> tuple[float, float]:
    return (0.5, 0.5) if bits == 1 else (float(1 << (bits - 1)), float((1 << (bits - 1)) - 1))


def _pack(codes: Tensor, bits: int) -> Tensor:
    shifts = torch.arange(0, 8, bits, dtype=torch.uint8, device=codes.device)
    padded = torch.nn.functional.pad(codes, (0, -codes.numel() % (8 // bits)))
    return (padded.view(-1, 8 // bits) << shifts).sum(1, dtype=torch.int32).to(torch.uint8)


def _unpack(packed: Tensor, bits: int) -> Tensor:
    shifts = torch.arange(0, 8, bits, dtype=torch.uint8, device=packed.device)
    return (packed.unsqueeze(1) >> shifts).bitwise_and((1 << bits) - 1).flatten()


def _units(key: int, blocks: Tensor) -> Tensor:
    """Return the noise of ``noise.unit`` for every entry."""
    keys = torch.tensor(
        [noise.splitmix((key + number * noise.GOLDEN_64) & noise.MASK_64) for number in range(blocks.shape[0])],
        dtype=torch.uint64,
    ).view(torch.int64)
    keys = keys.to(blocks.device).unsqueeze(1)
    low, high = keys & _MASK_32, (keys >> 32) & _MASK_32
    mixed = (torch.arange(_BLOCK, device=blocks.device) * noise.GOLDEN_32 + low) & _MASK_32
    mixed = ((mixed ^ (mixed >> 16)) * noise.MIX_1) & _MASK_32
    mixed = ((mixed ^ (mixed >> 15) ^ high) * noise.MIX_2) & _MASK_32
    return ((mixed ^ (mixed >> 16)) >> 8).to(torch.float32) * 2.0**-24
