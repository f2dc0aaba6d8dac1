"""The memory of error feedback, and the fused step on it.

    G = g + residual;   sent = top-k of G;   residual = G - sent

A plain implementation reads the data five times or more. Here one pass adds the gradient, collects what reaches the
threshold remembered from the last step, and clears it, block by block while the block is in cache; then the candidates
are trimmed to exactly k, and the few surplus ones are put back.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from headway.kernels import candidates, device, radix, scatter, values
from headway.kernels._jit import float_bits, kernel
from headway.kernels._lanes import BLOCK, INF_KEY, KEY_MASK, ROOM, extract_block, extract_range
from headway.kernels._threads import chunks, run
from headway.kernels.arrays import check_k, flat_raw
from headway.kernels.candidates import SMALLEST_KEY, Buffers, Candidates, Picked
from headway.kernels.gain import GainCurve, curve_from_counts, energy_of
from headway.kernels.half import widen
from headway.kernels.radix import Bin
from headway.kernels.threshold import Threshold
from headway.kernels.values import ValueFormat

_SURPLUS = 32
"""One entry in this many may be a surplus candidate, or as many as are wanted: with more, counting is cheaper."""


class Selection(NamedTuple):
    """What a step sends. The tensors live in buffers of the memory and are valid until its next step."""

    indices: Tensor
    """Ascending; int32, or int64 where numel needs it."""
    values: Tensor
    """The entries of G at those indices, float32, before rounding to the value format."""
    payload: Tensor
    """The values in their value format: the bytes for the wire."""
    gain_curve: GainCurve | None


class Memory:
    """The residual of one flat gradient, and all that is kept for it from step to step.

    After every step ``sent + residual == gradient + residual before``: to the bit with fp32 values, and to rounding
    with the others. What the value format rounds away stays in the residual. Inf and NaN are sent if they are among
    the top k and dropped if not; they never stay behind.

    >>> memory = Memory(4)
    >>> memory.select(torch.tensor([1.0, -5.0, 2.0, 0.5]), k=1).indices
    tensor([1], dtype=torch.int32)
    >>> memory.residual
    tensor([1.0000, 0.0000, 2.0000, 0.5000])
    """

    def __init__(self, numel: int, *, device: torch.device | str = "cpu") -> None:
        self.residual = torch.zeros(numel, dtype=torch.float32, device=device)
        self.threshold = Threshold()
        self._buffers = Buffers()
        self._payload = torch.empty(0, dtype=torch.uint8, device=device)
        self._error = torch.empty(0, dtype=torch.float32, device=device)

    def accumulate(self, gradient: Tensor) -> None:
        """Add the gradient to the residual, and select nothing."""
        self._check(gradient)
        self.residual.add_(gradient.detach().reshape(-1))

    def select(
        self, gradient: Tensor, k: int, *, value_format: ValueFormat = "fp32", with_gain_curve: bool = False
    ) -> Selection:
        """Add the gradient, take the exact top k of the sum out of the residual, and return it.

        **Cost**: one pass over gradient and residual when the remembered threshold holds; three when it does not, or
        when the gain curve is wanted, which counts every entry.
        """
        self._check(gradient)
        check_k(k, self.residual.numel())
        if self.residual.device.type == "cpu":
            picked, curve = self._pick(flat_raw(gradient), k, with_gain_curve)
            indices, taken = torch.from_numpy(picked.indices), torch.from_numpy(picked.values)
        else:
            self.accumulate(gradient)
            curve = device.gain_curve(self.residual) if with_gain_curve else None
            indices, taken = device.extract_topk(self.residual, k)
        return Selection(indices, taken, self._encode(indices, taken, value_format), curve)

    def take(self, indices: Tensor, *, value_format: ValueFormat = "fp32") -> Selection:
        """Take the entries at indices chosen elsewhere out of the residual, and return them."""
        taken = scatter.gather(self.residual, indices)
        scatter.clear(self.residual, indices)
        return Selection(indices, taken, self._encode(indices, taken, value_format), None)

    def drop_nonfinite(self) -> None:
        """Set Inf and NaN in the residual to zero."""
        if self.residual.device.type == "cpu":
            array = self._array
            run(lambda _, part: _drop_nonfinite(array[part]), chunks(array.size))
        else:
            device.drop_nonfinite(self.residual)

    @property
    def _array(self) -> npt.NDArray[np.float32]:
        array: npt.NDArray[np.float32] = self.residual.numpy()
        return array

    def _check(self, gradient: Tensor) -> None:
        if gradient.numel() != self.residual.numel():
            raise ValueError(f"gradient has {gradient.numel()} entries, but this memory has {self.residual.numel()}")

    def _pick(self, gradient: npt.NDArray[Any], k: int, with_gain_curve: bool) -> tuple[Picked, GainCurve | None]:
        key = None if with_gain_curve else self.threshold.guess(k)
        picked, curve = None, None
        if key is not None:
            picked = self._pick_in_one_pass(gradient, k, key)
        if picked is None:
            picked, curve = self._pick_by_counting(gradient if key is None else gradient[:0], k)
        self.threshold.observe(int(picked.key), k)
        if k == 0 or picked.key >= INF_KEY:
            self.drop_nonfinite()
        return picked, curve if with_gain_curve else None

    def _pick_in_one_pass(self, gradient: npt.NDArray[Any], k: int, key: np.uint32) -> Picked | None:
        """Try the remembered threshold; on a miss, leave the residual with the gradient added, and return None."""
        residual = self._array
        parts = chunks(residual.size)
        rooms = self._buffers.reserve(parts, k + max(k, residual.size // _SURPLUS))
        complete = [True] * len(parts)

        def extract(number: int, part: slice) -> Candidates:
            offsets, found = rooms[number]
            num_found, complete[number] = _accumulate_and_extract(residual[part], gradient[part], key, offsets, found)
            return Candidates(part.start, offsets[:num_found], found[:num_found])

        found = run(extract, parts)
        if all(complete) and (key == SMALLEST_KEY or sum(part.values.size for part in found) >= k):
            return self._buffers.pick(found, k, residual, clear=True, inside=None)
        candidates.restore(found, residual)
        return None

    def _pick_by_counting(self, gradient: npt.NDArray[Any], k: int) -> tuple[Picked, GainCurve]:
        """Find the threshold in a histogram of the sum; an empty gradient has been added already."""
        residual = self._array
        parts = chunks(residual.size)
        counts = [radix.new_counts() for _ in parts]
        energies = run(lambda n, part: _accumulate_and_count(residual[part], gradient[part], counts[n]), parts)
        totals = radix.total(counts)
        curve = curve_from_counts(totals, residual.size, sum(energies))
        inside = radix.find_bin(totals, k) if k else Bin(radix.INF_BIN, 0, 0)
        key = max(inside.key, SMALLEST_KEY)
        rooms = self._buffers.reserve(parts, inside.num_above + inside.num_inside)

        def extract(number: int, part: slice) -> Candidates:
            offsets, found = rooms[number]
            num_found = _extract(residual[part], key, offsets, found)
            return Candidates(part.start, offsets[:num_found], found[:num_found])

        return self._buffers.pick(run(extract, parts), k, residual, clear=True, inside=inside), curve

    def _encode(self, indices: Tensor, taken: Tensor, value_format: ValueFormat) -> Tensor:
        num_bytes = values.value_bytes(taken.numel(), value_format)
        if value_format == "fp32":
            return taken.view(torch.uint8)
        if self._error.numel() < taken.numel():
            self._error = torch.empty_like(taken)
        if self._payload.numel() < num_bytes:
            self._payload = torch.empty(num_bytes, dtype=torch.uint8, device=taken.device)
        payload, error = self._payload[:num_bytes], self._error[: taken.numel()]
        values.encode_values(taken, value_format, out=payload)
        values.decode_values(payload, taken.numel(), value_format, out=error)
        torch.sub(taken, error, out=error)
        device.drop_nonfinite(error)
        scatter.scatter_add(self.residual, indices, error)
        return payload


@kernel
def _add(residual: Any, gradient: Any) -> None:
    for i in range(residual.size):
        residual[i] += widen(gradient[i])


@kernel
def _accumulate_and_extract(residual: Any, gradient: Any, key: Any, offsets: Any, found: Any) -> tuple[int, bool]:
    """Add; collect and clear what reaches the key, until the room is used up; always add to the end."""
    num_found = 0
    tail = residual.size - residual.size % BLOCK
    last_fit = offsets.size - ROOM
    for at in range(0, tail, BLOCK):
        _add(residual[at : at + BLOCK], gradient[at : at + BLOCK])
        if num_found <= last_fit:
            num_found = extract_block(residual, at, key, offsets, found, num_found)
    _add(residual[tail:], gradient[tail:])
    if num_found <= last_fit:
        num_found = extract_range(residual, tail, residual.size, key, offsets, found, num_found)
    return num_found, num_found <= last_fit


@kernel
def _accumulate_and_count(residual: Any, gradient: Any, counts: Any) -> float:
    """Add, count and return the energy of the sum; an empty gradient has been added already."""
    bins = np.empty(BLOCK, np.uint16)
    energy = 0.0
    tail = residual.size - residual.size % BLOCK
    for at in range(0, tail, BLOCK):
        block = residual[at : at + BLOCK]
        if gradient.size:
            _add(block, gradient[at : at + BLOCK])
        radix.count_block(block, bins, counts)
        energy += energy_of(block)
    if gradient.size:
        _add(residual[tail:], gradient[tail:])
    radix.count_tail(residual[tail:], counts)
    return energy + energy_of(residual[tail:])


@kernel
def _extract(residual: Any, key: Any, offsets: Any, found: Any) -> int:
    num_found = 0
    tail = residual.size - residual.size % BLOCK
    for at in range(0, tail, BLOCK):
        num_found = extract_block(residual, at, key, offsets, found, num_found)
    return extract_range(residual, tail, residual.size, key, offsets, found, num_found)


@kernel
def _drop_nonfinite(residual: Any) -> None:
    for i in range(residual.size):
        if (float_bits(residual[i]) & KEY_MASK) >= INF_KEY:
            residual[i] = np.float32(0)
