"""Models to train, by name."""

from __future__ import annotations

from torch import nn

from headway.train.models.cnn import cnn
from headway.train.models.mlp import mlp
from headway.train.models.resnet import resnet
from headway.train.models.transformer import transformer
from headway.train.samples import Task

MODELS = {"mlp": mlp, "cnn": cnn, "resnet": resnet, "transformer": transformer}
"""Each takes the number of classes; the transformer is for text, the others for images of 28 x 28."""

__all__ = ["MODELS", "build_model", "check_model", "cnn", "mlp", "resnet", "transformer"]


def check_model(name: str, *, is_text: bool) -> None:
    """Raise `ValueError` if there is no such model, or it is for other data."""
    if name not in MODELS:
        raise ValueError(f"there is no model {name!r}: choose one of {', '.join(MODELS)}")
    if is_text != (name == "transformer"):
        fitting = "transformer" if is_text else "mlp, cnn or resnet"
        raise ValueError(f"the model {name} is not for {'text' if is_text else 'images'}: use {fitting}")


def build_model(name: str, task: Task) -> nn.Module:
    """Return a model for a task, initialised from torch's random numbers."""
    check_model(name, is_text=task.is_text)
    return MODELS[name](task.num_classes)
