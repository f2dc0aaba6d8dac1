"""Headway in the Hugging Face Trainer.

    trainer = transformers.Trainer(...)
    trainer.add_callback(headway.integrations.transformers.HeadwayCallback(trainer))
    trainer.train()

`HeadwayCallback` averages gradients, `HeadwayLocalCallback` takes several steps between exchanges.
"""

try:
    import transformers  # noqa: F401
except ImportError as error:
    raise ImportError(f"transformers cannot be imported ({error}): pip install 'headway[transformers]'") from error

from headway.integrations.transformers.hook import HeadwayCallback
from headway.integrations.transformers.local import HeadwayLocalCallback

__all__ = ["HeadwayCallback", "HeadwayLocalCallback"]
