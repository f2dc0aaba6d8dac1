"""What the strategies share: a handle for each ``fit``, and its state in a file for each rank beside the checkpoint."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from lightning.pytorch.strategies import DDPStrategy

from headway.integrations._shared import AnyHandle, resume


class RankStateStrategy(DDPStrategy):
    """A strategy whose handle has another state on every rank, in files ``NAME.ckpt.headway-RANK``."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.handle: AnyHandle | None = None
        """Handle of the latest ``fit``: open while it runs, and still readable afterwards."""
        self._resume_from: str | None = None

    def on_exception(self, exception: BaseException) -> None:
        """Let the other ranks know that this one has failed."""
        super().on_exception(exception)
        if self.handle is not None:
            self.handle.abandon()

    def teardown(self) -> None:
        if self.handle is not None:
            self.handle.close()
        super().teardown()

    def save_checkpoint(self, checkpoint: dict[str, Any], filepath: Any, storage_options: Any = None) -> None:
        super().save_checkpoint(checkpoint, filepath, storage_options=storage_options)
        if self.handle is not None and "optimizer_states" in checkpoint:
            path = self._state_path(filepath)
            self.checkpoint_io.save_checkpoint(self._own_state(self.handle), path, storage_options=storage_options)

    def _own_state(self, handle: AnyHandle) -> dict[str, Any]:
        """Return the state of this rank."""
        return handle.state_dict()

    def load_checkpoint(self, checkpoint_path: Any, *args: Any, **options: Any) -> dict[str, Any]:
        self._resume_from = os.path.realpath(checkpoint_path) if os.path.islink(checkpoint_path) else checkpoint_path
        return super().load_checkpoint(checkpoint_path, *args, **options)

    def load_optimizer_state_dict(self, checkpoint: Mapping[str, Any]) -> None:
        """Continue from the state of this rank, once Lightning has loaded what it has of rank 0."""
        super().load_optimizer_state_dict(checkpoint)
        assert self.handle is not None
        assert self._resume_from is not None
        resume(self.handle, self._read_state(self._resume_from), self.root_device)

    def remove_checkpoint(self, filepath: Any) -> None:
        super().remove_checkpoint(filepath)
        self.checkpoint_io.remove_checkpoint(self._state_path(filepath))

    def _read_state(self, filepath: str) -> dict[str, Any] | None:
        try:
            return self.checkpoint_io.load_checkpoint(self._state_path(filepath))
        except FileNotFoundError:
            return None

    def _state_path(self, filepath: Any) -> str:
        return f"{os.fspath(filepath)}.headway-{self.global_rank}"
