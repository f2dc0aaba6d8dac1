"""Where the buckets of a step are exchanged one by one, and one of them is rejected: what to do about the others."""

from __future__ import annotations

from torch import Tensor

from headway.compress import BucketMemory, Undo
from headway.exchange.base import Job


class StepOutcome:
    """Takes back what the buckets of a step have sent, if another bucket of the same step is rejected.

    A GradScaler that finds Inf or NaN skips the whole step, also the averages of buckets that had been exchanged before
    the overflow came. Where overflows are part of training, as with a loss scaler, memories are saved before their
    buckets are exchanged, and put back to the bit. Elsewhere every rank adds the average to its memory:

        sum over ranks of (G - sent + average) = sum over ranks of G,  since N average = sum of what was sent

    Nothing that waited in a memory is lost then, though it may now wait on another rank, and the gradient of the
    skipped step stays in these memories too, and is sent later.

    **Cost**: a copy of each memory that is saved; one addition for each bucket of a step that is skipped.
    """

    def __init__(self) -> None:
        self._exchanged: list[tuple[BucketMemory, Tensor]] = []
        self._saved: list[Undo] = []
        self.is_skipped = False
        """Whether a bucket of this step has been rejected."""
        self.was_skipped = False
        """Whether the last step that was settled had a bucket that was rejected."""

    def save(self, memory: BucketMemory) -> None:
        """Save a memory whose bucket is about to be exchanged before others of its step."""
        self._saved.append(Undo.of_copy(memory))

    def add(self, job: Job, *, is_saved: bool) -> None:
        """Take in a bucket that has been exchanged, or rejected."""
        self.is_skipped |= job.is_rejected
        if job.memory.is_used and not job.is_rejected and not is_saved:
            self._exchanged.append((job.memory, job.gradient))  # and not the job, whose undo may hold a buffer

    def settle(self) -> None:
        """End the step; its averages must still be there."""
        exchanged, saved, self.was_skipped = self._exchanged, self._saved, self.is_skipped
        self._exchanged, self._saved, self.is_skipped = [], [], False
        if self.was_skipped:
            for undo in saved:
                undo.run()
            for memory, average in exchanged:
                memory.residual.add_(average)
