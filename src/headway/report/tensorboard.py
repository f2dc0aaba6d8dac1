"""Scalars for TensorBoard."""

from __future__ import annotations

from pathlib import Path

from headway.report.reading import Counted, scalars


class TensorBoard:
    """Writes what Headway does as TensorBoard scalars. Needs ``pip install headway[tensorboard]``.

        board = headway.report.TensorBoard(handle)
        for step, (inputs, targets) in enumerate(loader):
            ...
            optimizer.step()
            if rank == 0:
                board.step(step, loss=loss.item())
        board.close()

    Args:
        handle: What `headway.attach` or `headway.gossip.wrap` returned.
        folder: Where to.
    """

    def __init__(self, handle: Counted, folder: Path | str = "runs/headway") -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise ValueError("tensorboard is not installed: pip install 'headway[tensorboard]'") from None
        self._handle = handle
        self._writer = SummaryWriter(str(folder))

    def step(self, number: int, **values: float) -> None:
        """Write Headway's scalars, and others by name, at a step."""
        for name, value in {**scalars(self._handle), **values}.items():
            self._writer.add_scalar(name, value, number)

    def close(self) -> None:
        """Write all that is left."""
        self._writer.close()
