"""Headway keeps PyTorch data-parallel training moving over networks that are slow, far apart or keep changing."""

from headway import kernels
from headway.errors import HeadwayError, MessageError

__version__ = "0.1.0.dev0"

__all__ = ["HeadwayError", "MessageError", "__version__", "kernels"]
