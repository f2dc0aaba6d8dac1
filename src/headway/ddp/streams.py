"""Devices with streams: the engine thread must not run ahead of backward, nor DDP ahead of the engine.

There is no such device where Headway is tested: this has not been run.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.futures import Future


def future_for(gradient: Tensor) -> Future[Tensor]:
    """Return a future that carries the state of the gradient's streams along."""
    return Future() if gradient.device.type == "cpu" else Future(devices=[gradient.device])


def after_backward(task: Callable[[], None], gradient: Tensor) -> Callable[[], None]:
    """Return a task that starts on the device only when what has been queued so far for the gradient is done."""
    if gradient.device.type == "cpu":
        return task
    ready = torch.cuda.current_stream(gradient.device).record_event()

    def wait_and_run() -> None:
        with torch.cuda.device(gradient.device):
            torch.cuda.current_stream().wait_event(ready)
            task()

    return wait_and_run
