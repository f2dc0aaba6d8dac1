"""The end of a backward pass, also of one that fails: DDP does not notice that, and other ranks would wait."""

from __future__ import annotations

from collections.abc import Callable
from weakref import WeakMethod, ref

import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel
from torch.utils.hooks import RemovableHandle


class EndOfBackward:
    """A callback for autograd, which calls it when the pass is over and drops it uncalled when the pass has failed.

    Args:
        on_end: Called at the end; what it raises, backward raises.
        on_failure: Called when the pass has failed.
    """

    def __init__(self, on_end: Callable[[], None], on_failure: Callable[[], None]) -> None:
        self._on_end = on_end
        self._on_failure: Callable[[], None] | None = on_failure

    def __call__(self) -> None:
        self._on_failure = None
        self._on_end()

    def __del__(self) -> None:
        if self._on_failure is not None:
            self._on_failure()

    def queue(self) -> None:
        """Wait for the end of the pass that is running, if one is."""
        try:
            torch.autograd.Variable._execution_engine.queue_callback(self)
        except RuntimeError:  # none is, as when DDP's Join shadows one
            self._on_failure = None


def notice_failure(ddp: DistributedDataParallel, on_failure: Callable[[], None]) -> Callable[[], None]:
    """Call a function if backward fails after it has begun, even before the first bucket is complete.

    Returns a function that ends this: the hook is on a parameter, which outlives the DDP model around it.

    The parameter that was added last mostly has its gradient first. If backward fails before that, DDP has seen nothing
    of it, and the next step may take its place.

    Args:
        ddp: The model.
        on_failure: A method, called unless gradients are only accumulated (``no_sync``): such a pass may fail and be
            skipped.
    """
    model, fail = ref(ddp), WeakMethod(on_failure)  # a parameter must not keep its model and process group alive

    def begin(_: Tensor) -> None:
        alive, call = model(), fail()
        if alive is not None and call is not None and alive.require_backward_grad_sync:
            EndOfBackward(lambda: None, call).queue()

    trained = [parameter for parameter in ddp.parameters() if parameter.requires_grad]
    if not trained:
        return lambda: None
    hook: RemovableHandle = trained[-1].register_post_accumulate_grad_hook(begin)  # type: ignore[no-untyped-call]
    return hook.remove
