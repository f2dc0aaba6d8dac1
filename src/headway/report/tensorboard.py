"""Scalars for TensorBoard and for the loggers of other frameworks."""

from __future__ import annotations

import math
from pathlib import Path

from headway.ddp import HookState
from headway.local import LocalOptimizer
from headway.report.reading import Counted, read


def scalars(handle: Counted) -> dict[str, float]:
    """Return what a logger would plot, by names such as "headway/ratio"; unknown values are left out."""
    now = read(handle)
    values = {
        "sent_mb": now.wire_bytes / 1e6,
        "saved": now.saved,
        "compress_s": now.compress_s,
        "wait_s": now.wait_s,
        "transfer_s": now.transfer_s,
        "latency_ms": 1e3 * now.latency_s,
        "bandwidth_mbps": now.bandwidth_bps / 1e6,
        "local_steps": now.local_steps,
        "agreement": now.agreement,
    }
    if isinstance(handle, (HookState, LocalOptimizer)):
        values["switches"] = sum(decision.is_switch for decision in handle.history)
        for latest in handle.records[-1:]:
            values |= {"ratio": latest.ratio, "gain": latest.gain}
    return {f"headway/{name}": float(value) for name, value in values.items() if math.isfinite(value)}


class TensorBoard:
    """Writes `scalars` for TensorBoard. Needs ``pip install headway[tensorboard]``.

        board = headway.report.TensorBoard(handle)
        for step, (inputs, targets) in enumerate(loader):
            ...
            optimizer.step()
            if rank == 0:
                board.step(step, loss=loss.item())
        board.close()

    Args:
        handle: What `headway.attach`, `headway.local.wrap` or `headway.gossip.wrap` returned.
        folder: The folder to write to.
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
        """Flush and close the file."""
        self._writer.close()
