"""Reference workloads, by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from headway.train.images import FASHION_MNIST, load_digits, load_idx
from headway.train.samples import Task
from headway.train.text import load_text


@dataclass(frozen=True, kw_only=True)
class Workload:
    """A data set, with the model, optimizer and learning rate that suit it."""

    description: str
    load: Callable[[Path | None], Task]
    """Takes the path that --data gives."""
    model: str
    optimizer: str
    lr: float
    is_text: bool = False


def _digits(data: Path | None) -> Task:
    if data is not None:
        raise ValueError("digits are included in headway and take no data: use fashion-mnist for a folder of idx files")
    return load_digits()


def _fashion_mnist(data: Path | None) -> Task:
    if data is None and not FASHION_MNIST.is_dir():
        raise ValueError(
            f"there is no {FASHION_MNIST}: apt install dataset-fashion-mnist, or give a folder of idx files with --data"
        )
    return load_idx(data or FASHION_MNIST)


WORKLOADS = {
    "digits": Workload(
        description="1,797 handwritten digits, included in headway",
        load=_digits,
        model="cnn",
        optimizer="sgd",
        lr=0.03,
    ),
    "fashion-mnist": Workload(
        description="idx files in a folder; by default Debian's Fashion-MNIST",
        load=_fashion_mnist,
        model="cnn",
        optimizer="sgd",
        lr=0.03,
    ),
    "text": Workload(
        description="a text file, character by character; by default docstrings of Python's standard library",
        load=load_text,
        model="transformer",
        optimizer="adamw",
        lr=0.002,
        is_text=True,
    ),
}
