"""Headway in scripts that use Hugging Face Accelerate.

    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    handle = headway.integrations.accelerate.attach(model, optimizer=optimizer)

`attach` averages the gradients of the model that ``prepare`` returns; `wrap` takes several steps between exchanges.
"""

from headway.integrations.accelerate.checkpoints import register_for_checkpointing
from headway.integrations.accelerate.hook import attach
from headway.integrations.accelerate.local import SteppedLocally, wrap

__all__ = ["SteppedLocally", "attach", "register_for_checkpointing", "wrap"]
