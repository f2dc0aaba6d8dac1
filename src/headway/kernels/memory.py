"""The memory of error feedback, and its fused step.

    G = g + residual;   sent = top-k of G;   residual = G - sent

A plain implementation reads the data five times or more. Here one pass adds the gradient, collects the entries that
reach the threshold remembered from the last step, and clears them, block by block while the block is in cache; then
the candidates are trimmed to exactly k, and the few surplus ones are put back.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from headway.kernels import device, feedback, radix, scatter, select, values
from headway.kernels._lanes import INF_KEY
from headway.kernels._threads import chunks, run
from headway.kernels.arrays import as_array, check_buffer, check_dtype, check_k, flat_raw, uses_torch
from headway.kernels.gain import GainCurve, curve_from_counts
from headway.kernels.radix import INF_BIN
from headway.kernels.select import SMALLEST_KEY, Buffers, Candidates, Picked
from headway.kernels.threshold import Threshold
from headway.kernels.values import ValueFormat
from headway.kernels.velocity import AT_REST, Motion, Velocity

Array = npt.NDArray[Any]

_NOTHING: npt.NDArray[np.float32] = np.empty(0, np.float32)
_SURPLUS = 32
"""Up to numel / _SURPLUS surplus candidates, or k if that is more, are accepted: beyond it, counting is cheaper."""


class Selection(NamedTuple):
    """The entries that a step sends. The tensors are views of the memory's buffers, valid until its next step."""

    indices: Tensor
    """Ascending; int32, or int64 where numel needs it."""
    values: Tensor
    """The entries of G at those indices, float32, before rounding to the value format."""
    payload: Tensor
    """The values in their value format: the bytes for the wire."""
    lost: Tensor
    """What the value format has rounded away, which is back in the residual; empty with fp32."""


class Memory:
    """The residual of one flat gradient, and the state kept with it from step to step.

    After every step ``sent + residual == gradient + residual before``: to the bit with fp32 values, and to rounding
    with the others. What the value format rounds away stays in the residual. Inf and NaN are sent if they are among
    the top k and dropped if not; they never stay in the residual.

    Args:
        numel: Number of entries of the gradient.
        residual: Tensor to use instead of a new one, for instance a slice of a larger one; it keeps its content.
        velocity: For momentum correction: advances with every gradient, and is what is added to the residual. Every
            gradient that is added then needs an ``undo``.
        device: Device of a new residual.

    >>> memory = Memory(4)
    >>> memory.select(torch.tensor([1.0, -5.0, 2.0, 0.5]), k=1).indices
    tensor([1], dtype=torch.int32)
    >>> memory.residual
    tensor([1.0000, 0.0000, 2.0000, 0.5000])
    """

    def __init__(
        self,
        numel: int,
        *,
        residual: Tensor | None = None,
        velocity: Velocity | None = None,
        device: torch.device | str = "cpu",
    ) -> None:
        if residual is None:
            residual = torch.zeros(numel, dtype=torch.float32, device=device)
        check_buffer(residual, torch.float32, numel, "residual")
        self.residual = residual
        self.velocity = velocity
        self.threshold = Threshold()
        self.has_nonfinite = False
        """Whether the residual has Inf or NaN from the last accumulated gradient; ``take`` drops them."""
        self._buffers = Buffers()
        self._taken, self._error = (torch.empty(0, device=residual.device) for _ in range(2))
        self._payload = torch.empty(0, dtype=torch.uint8, device=residual.device)

    def accumulate(self, gradient: Tensor | None, *, undo: Tensor | None = None) -> None:
        """Add the gradient to the residual without selecting anything.

        Args:
            gradient: Of the size of the memory; float32 or narrower. None if it has been added already.
            undo: Receives the residual from before; float32, and may be the gradient itself.
        """
        self._check(gradient, undo)
        if gradient is None:
            return
        if not uses_torch(self.residual):
            residual, (raw, saved), motion = self._array, self._raw(gradient, undo), self._motion
            largest = run(
                lambda _, part: feedback.accumulate(residual[part], raw[part], saved[part], motion.part(part)),
                chunks(residual.size),
            )
            self.has_nonfinite = max(largest) >= INF_KEY
        else:
            added = gradient.detach().reshape(-1) if self.velocity is None else self.velocity.advance(gradient)
            device.accumulate(self.residual, added, undo)
            self.has_nonfinite = not bool(self.residual.isfinite().all())

    def accumulate_with_gain_curves(
        self, gradient: Tensor, *, undo: Tensor | None = None
    ) -> tuple[GainCurve, GainCurve]:
        """Add the gradient to the residual; return the gain curves of what is added and of the sum.

        What is added is the gradient alone or, with momentum correction, the velocity.

        **Cost**: one pass over gradient and residual. **Error**: that of ``gain_curve``. For ``undo`` see `accumulate`.

        >>> memory = Memory(4)
        >>> memory.accumulate(torch.tensor([0.0, 2.0, 0.0, 0.0]))
        >>> of_gradient, of_sum = memory.accumulate_with_gain_curves(torch.tensor([3.0, 0.0, 0.0, 0.0]))
        >>> of_gradient.energy, of_sum.energy
        (9.0, 13.0)
        """
        if uses_torch(self.residual):
            return self._accumulate_with_torch(gradient, undo)
        self._check(gradient, undo)
        residual, (raw, saved), motion = self._array, self._raw(gradient, undo), self._motion
        parts = chunks(residual.size)
        counts = [radix.new_counts() for _ in parts]
        energies = run(
            lambda number, part: feedback.accumulate_and_count_both(
                residual[part], raw[part], saved[part], motion.part(part), counts[number]
            ),
            parts,
        )
        totals = radix.total(counts)
        self.has_nonfinite = bool(totals[INF_BIN:, 1].any())
        of_added, of_sum = (
            curve_from_counts(totals[:, column], residual.size, sum(energy[column] for energy in energies))
            for column in range(2)
        )
        return of_added, of_sum

    def _accumulate_with_torch(self, gradient: Tensor, undo: Tensor | None) -> tuple[GainCurve, GainCurve]:
        if self.velocity is None:
            of_added = device.gain_curve(gradient)
            self.accumulate(gradient, undo=undo)
        else:
            self._check(gradient, undo)
            added = self.velocity.advance(gradient)
            of_added = device.gain_curve(added)
            device.accumulate(self.residual, added, undo)
            self.has_nonfinite = not bool(self.residual.isfinite().all())
        return of_added, device.gain_curve(self.residual)

    def select(
        self, gradient: Tensor | None, k: int, *, value_format: ValueFormat = "fp32", undo: Tensor | None = None
    ) -> Selection:
        """Add the gradient, take the exact top k of the sum out of the residual, and return it.

        With momentum correction, the velocity of these entries is masked.

        **Cost**: one pass over gradient and residual when the remembered threshold holds, three when it does not; two
        without one. Saving the residual for an undo adds a write of it to the pass.

        Args:
            gradient: Of the size of the memory; float32 or narrower. None if it has been added already.
            k: How many entries to take.
            value_format: The format of the payload.
            undo: Receives the residual from before; float32, and may be the gradient itself.
        """
        indices, taken = self._extract(gradient, k, value_format, undo)
        self._mask(indices)
        return Selection(indices, taken, *self._encode(indices, taken, value_format))

    def peek(self, gradient: Tensor | None, k: int, *, undo: Tensor | None = None) -> Selection:
        """Add the gradient, and return the exact top k of the sum, which stays in the residual, but for Inf and NaN.

        **Cost**: that of `select`, and what it takes to put k entries back.
        """
        indices, taken = self._extract(gradient, k, "fp32", undo)
        finite = taken.clone()
        device.drop_nonfinite(finite)
        scatter.scatter_add(self.residual, indices, finite)
        return Selection(indices, taken, taken.view(torch.uint8), taken[:0])

    def _extract(
        self, gradient: Tensor | None, k: int, value_format: ValueFormat, undo: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Add the gradient, and take the top k out of the residual; return indices and values."""
        self._check(gradient, undo)
        k = check_k(k, self.residual.numel())
        values.value_bytes(k, value_format)  # raises for an unknown format, before anything changes
        if k == 0 or uses_torch(self.residual):
            self.accumulate(gradient, undo=undo)
            indices, taken = device.extract_topk(self.residual, k)
        else:
            picked = self._pick(*self._raw(gradient, undo), k)
            indices, taken = torch.from_numpy(picked.indices), torch.from_numpy(picked.values)
        self.has_nonfinite = False
        return indices, taken

    def take(self, indices: Tensor, *, value_format: ValueFormat = "fp32") -> Selection:
        """Take the entries at the given distinct indices out of the residual, as `select` does, and return them."""
        k = indices.numel()
        values.value_bytes(k, value_format)
        if self._taken.numel() < k:
            self._taken = torch.empty(k, device=self.residual.device)
        taken = scatter.gather(self.residual, indices, out=self._taken[:k])
        scatter.clear(self.residual, indices)
        self._mask(indices)
        if self.has_nonfinite:
            self.drop_nonfinite()
        return Selection(indices, taken, *self._encode(indices, taken, value_format))

    def drop_nonfinite(self) -> None:
        """Set Inf and NaN in the residual to zero."""
        if not uses_torch(self.residual):
            residual = self._array
            run(lambda _, part: feedback.drop_nonfinite(residual[part]), chunks(residual.size))
        else:
            device.drop_nonfinite(self.residual)
        self.has_nonfinite = False

    @property
    def _array(self) -> npt.NDArray[np.float32]:
        return as_array(self.residual)

    @property
    def _motion(self) -> Motion:
        return AT_REST if self.velocity is None else self.velocity.motion

    def _mask(self, indices: Tensor) -> None:
        if self.velocity is not None:
            self.velocity.mask(indices)

    def _check(self, gradient: Tensor | None, undo: Tensor | None) -> None:
        if undo is None and gradient is not None and self.velocity is not None:
            raise ValueError("a memory with a velocity needs room for the residual from before: give undo=")
        if undo is not None:
            check_buffer(undo, torch.float32, self.residual.numel(), "undo")
        if gradient is None:
            return
        check_dtype(gradient)
        if gradient.numel() != self.residual.numel():
            raise ValueError(f"gradient has {gradient.numel()} entries, but this memory has {self.residual.numel()}")
        if gradient.device != self.residual.device:
            raise ValueError(f"gradient is on {gradient.device}, but this memory is on {self.residual.device}")

    def _raw(self, gradient: Tensor | None, undo: Tensor | None) -> tuple[Array, Array]:
        """Return gradient and room for the residual as the passes of ``feedback`` take them."""
        if gradient is None:
            return _NOTHING, _NOTHING
        raw = flat_raw(gradient)
        if undo is None:
            return raw, _NOTHING
        saved = as_array(undo)
        if raw.dtype == np.float32 and raw.ctypes.data != saved.ctypes.data:  # the passes save it in the gradient
            undo.copy_(self.residual)
            return (raw, _NOTHING) if self.velocity is None else (raw.copy(), saved)
        return raw, saved

    def _pick(self, gradient: Array, saved: Array, k: int) -> Picked:
        """Add the gradient, unless it is empty because that has been done, and take the top k."""
        key = self.threshold.guess(k)
        picked = None if key is None else self._pick_in_one_pass(gradient, saved, k, key)
        if picked is None:
            picked = self._pick_by_counting(gradient if key is None else gradient[:0], saved, k)
        self.threshold.observe(int(picked.key), k)
        if picked.key >= INF_KEY:
            self.drop_nonfinite()
        return picked

    def _pick_in_one_pass(self, gradient: Array, saved: Array, k: int, key: np.uint32) -> Picked | None:
        """Try the remembered threshold; on a miss, return None, with the gradient added to the residual."""
        residual, motion = self._array, self._motion
        parts = chunks(residual.size)
        rooms = self._buffers.reserve(parts, k + max(k, residual.size // _SURPLUS))
        complete = [True] * len(parts)

        def extract(number: int, part: slice) -> Candidates:
            offsets, found = rooms[number]
            num_found, complete[number] = feedback.accumulate_and_extract(
                residual[part], gradient[part], saved[part], motion.part(part), key, offsets, found
            )
            return Candidates(part.start, offsets[:num_found], found[:num_found])

        found = run(extract, parts)
        if all(complete) and (key == SMALLEST_KEY or sum(part.values.size for part in found) >= k):
            return self._buffers.pick(found, k, residual, clear=True, from_key=key)
        select.restore(found, residual)
        return None

    def _pick_by_counting(self, gradient: Array, saved: Array, k: int) -> Picked:
        """Find the threshold in a histogram of the sum; an empty gradient means that it is already added."""
        residual, motion = self._array, self._motion
        parts = chunks(residual.size)
        counts = [radix.new_counts() for _ in parts]
        run(
            lambda number, part: feedback.accumulate_and_count(
                residual[part], gradient[part], saved[part], motion.part(part), counts[number]
            ),
            parts,
        )
        return self._buffers.pick_counted(residual, parts, counts, k, clear=True)

    def _encode(self, indices: Tensor, taken: Tensor, value_format: ValueFormat) -> tuple[Tensor, Tensor]:
        """Return the values in their format, and what it rounds away, which is left in the residual."""
        if value_format == "fp32":
            return taken.view(torch.uint8), taken[:0]
        k, num_bytes = taken.numel(), values.value_bytes(taken.numel(), value_format)
        if self._error.numel() < k:
            self._error = torch.empty(k, device=taken.device)
        if self._payload.numel() < num_bytes:
            self._payload = torch.empty(num_bytes, dtype=torch.uint8, device=taken.device)
        payload, error = self._payload[:num_bytes], self._error[:k]
        values.encode_values(taken, value_format, out=payload)
        values.decode_values(payload, k, value_format, out=error)
        device.drop_nonfinite(error)  # if a block arrives as NaN, its finite values were not sent
        torch.sub(taken, error, out=error)
        device.drop_nonfinite(error)
        scatter.scatter_add(self.residual, indices, error)
        return payload, error
