"""Thin adapters for training frameworks; each imports its framework when it is first used."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headway.integrations import accelerate, lightning, transformers

__all__ = ["accelerate", "lightning", "transformers"]


def __getattr__(name: str) -> Any:
    """Import an adapter when it is first used."""
    if name in __all__:
        return import_module(f"headway.integrations.{name}")
    raise AttributeError(f"module 'headway.integrations' has no attribute {name!r}")
