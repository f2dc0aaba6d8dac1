"""Headway in PyTorch Lightning.

    strategy = headway.integrations.lightning.HeadwayStrategy()
    trainer = lightning.Trainer(accelerator="cpu", devices=4, strategy=strategy)

`HeadwayStrategy` averages gradients, `HeadwayLocalStrategy` takes several steps between exchanges.
"""

try:
    import lightning.pytorch  # noqa: F401
except ImportError as error:
    raise ImportError(f"lightning cannot be imported ({error}): pip install 'headway[lightning]'") from error

from headway.integrations.lightning.hook import HeadwayStrategy
from headway.integrations.lightning.local import HeadwayLocalStrategy
from headway.integrations.lightning.logging import HeadwayLogging

__all__ = ["HeadwayLocalStrategy", "HeadwayLogging", "HeadwayStrategy"]
