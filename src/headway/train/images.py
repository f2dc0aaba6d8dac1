"""Image data: idx files in the format of MNIST and Fashion-MNIST, or handwritten digits."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from headway.train.samples import Samples, Task

FASHION_MNIST = Path("/usr/share/datasets/fashion-mnist")
"""Where Debian's package dataset-fashion-mnist puts it."""
DIGITS = Path(__file__).parent / "digits.npz"
SIDE = 28
_UNSIGNED_BYTES = 8
_NUM_TEST_DIGITS = 360


def load_images(folder: Path | str | None = None) -> Task:
    """Load a folder of idx files; by default Fashion-MNIST, or the digits where it is not installed."""
    if folder is not None:
        return load_idx(folder)
    return load_idx(FASHION_MNIST) if FASHION_MNIST.is_dir() else load_digits()


def load_idx(folder: Path | str) -> Task:
    """Read ``{train,t10k}-{images-idx3,labels-idx1}-ubyte``, compressed (.gz) or not.

    Raises:
        ValueError: A file is missing, truncated or of another format; the message names it.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise ValueError(f"there is no folder {folder}: give one that holds train-images-idx3-ubyte etc.")
    parts = {}
    for part in ("train", "t10k"):
        images = read_idx(_find(folder, f"{part}-images-idx3-ubyte"), num_dimensions=3)
        labels = read_idx(_find(folder, f"{part}-labels-idx1-ubyte"), num_dimensions=1)
        parts[part] = (images.to(torch.float32)[:, None] / 255, labels.to(torch.int64))
    for part, (images, _) in parts.items():
        if images.shape[1:] != (1, SIDE, SIDE) or not len(images):
            size = "x".join(map(str, images.shape[2:]))
            raise ValueError(f"{folder} has {len(images)} images of {size} for {part}, but models take {SIDE}x{SIDE}")
    mean, deviation = parts["train"][0].mean(), parts["train"][0].std().clamp_min(1e-6)
    train, test = (Samples((images - mean) / deviation, labels) for images, labels in parts.values())
    num_classes = int(max(train.targets.max(), test.targets.max())) + 1
    return Task(name=folder.name, train=train, test=test, num_classes=num_classes)


def load_digits() -> Task:
    """Return the 1,797 handwritten digits of scikit-learn, enlarged from 8 x 8 to 28 x 28; included in this package.

    They are the test part of the UCI data set "Optical Recognition of Handwritten Digits" (Alpaydin and Kaynak, 1998;
    CC BY 4.0).
    """
    with np.load(DIGITS) as digits:
        small = torch.tensor(digits["images"], dtype=torch.float32)[:, None]
        labels = torch.tensor(digits["labels"], dtype=torch.int64)
    images = torch.nn.functional.interpolate(small, size=(SIDE, SIDE), mode="bilinear")
    images = (images - images.mean()) / images.std()
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    test, train = order[:_NUM_TEST_DIGITS], order[_NUM_TEST_DIGITS:]
    return Task(name="digits", train=Samples(images[train], labels[train]), test=Samples(images[test], labels[test]))


def read_idx(path: Path, num_dimensions: int) -> Tensor:
    """Return the bytes of an idx file as a tensor of its shape."""
    try:
        content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ValueError(f"{path} is damaged: {error}") from None
    header = 4 + 4 * num_dimensions
    if len(content) < header or content[:4] != bytes([0, 0, _UNSIGNED_BYTES, num_dimensions]):
        raise ValueError(f"{path} is not an idx file of {num_dimensions} dimensions of unsigned bytes")
    shape: Sequence[int] = np.frombuffer(content, ">u4", num_dimensions, offset=4).tolist()
    values = np.frombuffer(content, np.uint8, offset=header)
    if values.size != np.prod(shape):
        raise ValueError(f"{path} should hold {'x'.join(map(str, shape))} bytes, but has {values.size}")
    return torch.from_numpy(values.reshape(shape).copy())


def _find(folder: Path, name: str) -> Path:
    for path in (folder / name, folder / f"{name}.gz"):
        if path.is_file():
            return path
    raise ValueError(f"there is no {name} or {name}.gz in {folder}")
