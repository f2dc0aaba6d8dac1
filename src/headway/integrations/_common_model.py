"""The common model of local steps in place of a rank's own, while a framework evaluates or saves."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TypeVar

from torch.nn import Module

from headway.local import LocalOptimizer

T = TypeVar("T")


class CommonModel:
    """Puts the common model in place, and takes it back: `LocalOptimizer.averaged` for frameworks that call hooks.

    Args:
        handle: The optimizer of local steps.
    """

    def __init__(self, handle: LocalOptimizer) -> None:
        self._handle = handle
        self._block: ExitStack | None = None

    def put(self) -> None:
        """Put the common model in place, unless it is there."""
        if self._block is None:
            self._block = ExitStack()
            self._block.enter_context(self._handle.averaged())

    def take_back(self) -> None:
        """Give this rank its own model back, unless it has it."""
        block, self._block = self._block, None
        if block is not None:
            block.close()

    def let_go(self, model: Module) -> None:
        """Leave the model with what it holds now, as when a framework has loaded another one over the common one."""
        if self._block is not None:
            held = copy.deepcopy(model.state_dict())
            self.take_back()
            model.load_state_dict(held)

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Give this rank its own model back inside the block, as to save its state."""
        is_in_place = self._block is not None
        self.take_back()
        try:
            yield
        finally:
            if is_in_place:
                self.put()

    def copy_of(self, read: Callable[[], T]) -> T:
        """Return a copy of what is read with the common model in place, such as the model's state."""
        is_in_place = self._block is not None
        self.put()
        try:
            return copy.deepcopy(read())
        finally:
            if not is_in_place:
                self.take_back()
