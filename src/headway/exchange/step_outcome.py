"""Where the buckets of a step are exchanged one by one, and one of them is rejected: what to do about the others."""

from __future__ import annotations

from torch import Tensor

from headway.compress import BucketMemory
from headway.exchange.base import Job


class StepOutcome:
    """Takes back what the buckets of a step have sent, if another bucket of the same step is rejected.

    A GradScaler that finds Inf or NaN skips the whole step, also the averages of buckets that had been exchanged before
    the overflow came. Every rank then adds the average to its memory:

        sum over ranks of (G - sent + average) = sum over ranks of G,  since N average = sum of what was sent

    Nothing that waited in a memory is lost, though it may now wait on another rank. Unlike in the bucket that
    overflowed, the gradient of the skipped step stays in these memories too, and is sent later: the room in which the
    residual from before was saved has been overwritten by the average.

    **Cost**: one addition for each bucket of a step that is skipped; otherwise nothing.
    """

    def __init__(self) -> None:
        self._exchanged: list[tuple[BucketMemory, Tensor]] = []
        self._is_skipped = False
        self.was_skipped = False
        """Whether the last step that was settled had a bucket that was rejected."""

    def add(self, job: Job) -> None:
        """Take in a bucket that has been exchanged, or rejected."""
        self._is_skipped |= job.is_rejected
        if job.memory.is_used and not job.is_rejected:
            self._exchanged.append((job.memory, job.gradient))  # and not the job, whose undo may hold a buffer

    def settle(self) -> None:
        """End the step; its averages must still be there."""
        exchanged, self.was_skipped = self._exchanged, self._is_skipped
        self._exchanged, self._is_skipped = [], False
        for memory, average in exchanged if self.was_skipped else ():
            memory.residual.add_(average)
