"""Image data: idx files, the digits, and errors for damaged files."""

from __future__ import annotations

import gzip

import numpy as np
import pytest
import torch

from headway.train import images as images_module
from headway.train import load_digits, load_idx, load_images


def write_idx(path, array: np.ndarray, *, compress: bool = False) -> None:
    header = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">u4").tobytes()
    content = header + array.astype(np.uint8).tobytes()
    path.write_bytes(gzip.compress(content) if compress else content)


@pytest.fixture
def folder(tmp_path):
    source = np.random.default_rng(0)
    for part, number in (("train", 50), ("t10k", 20)):
        write_idx(tmp_path / f"{part}-images-idx3-ubyte", source.integers(0, 256, (number, 28, 28)))
        write_idx(tmp_path / f"{part}-labels-idx1-ubyte.gz", source.integers(0, 10, number), compress=True)
    return tmp_path


def test_a_folder_of_idx_files_is_read_compressed_or_not(folder):
    task = load_images(folder)
    assert task.name == folder.name
    assert task.train.inputs.shape == (50, 1, 28, 28)
    assert task.test.targets.dtype == torch.int64
    assert len(task.test) == 20
    assert task.train.inputs.mean().item() == pytest.approx(0, abs=1e-5)
    assert task.train.inputs.std().item() == pytest.approx(1, abs=1e-4)


def test_pixels_keep_their_place(folder):
    pixels = np.zeros((50, 28, 28))
    pixels[7, 3, 5] = 255
    write_idx(folder / "train-images-idx3-ubyte", pixels)
    images = load_idx(folder).train.inputs
    assert images.argmax().item() == (7 * 28 + 3) * 28 + 5


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda path: path.unlink(), "there is no train-images-idx3-ubyte or train-images-idx3-ubyte.gz in"),
        (lambda path: path.write_bytes(b"GIF89a"), "is not an idx file of 3 dimensions"),
        (lambda path: path.write_bytes(b""), "is not an idx file of 3 dimensions"),
        (lambda path: path.write_bytes(path.read_bytes()[:-1]), "should hold 50x28x28 bytes, but has 39199"),
        (lambda path: write_idx(path, np.zeros((49, 28, 28))), "49 inputs have 50 targets"),
    ],
)
def test_a_file_that_is_missing_or_damaged_is_named(folder, damage, said):
    damage(folder / "train-images-idx3-ubyte")
    with pytest.raises(ValueError, match=said):
        load_idx(folder)


def test_without_fashion_mnist_the_digits_are_used(monkeypatch, tmp_path):
    monkeypatch.setattr(images_module, "FASHION_MNIST", tmp_path / "nowhere")
    task = load_images()
    assert (task.name, len(task.train), len(task.test)) == ("digits", 1437, 360)
    assert task.train.inputs.shape[1:] == (1, 28, 28)


def test_train_and_test_digits_differ():
    task = load_digits()
    seen = {image.numpy().tobytes() for image in task.train.inputs}
    assert sum(image.numpy().tobytes() in seen for image in task.test.inputs) == 0


@pytest.mark.skipif(not images_module.FASHION_MNIST.is_dir(), reason="dataset-fashion-mnist is not installed")
def test_fashion_mnist_as_debian_has_it():
    task = load_images()
    assert (len(task.train), len(task.test)) == (60_000, 10_000)
    assert task.train.targets.bincount().tolist() == [6000] * 10


def test_the_digits_are_those_of_scikit_learn():
    from sklearn import datasets

    theirs = datasets.load_digits()
    with np.load(images_module.DIGITS) as ours:
        assert (ours["images"] == theirs.images).all()
        assert (ours["labels"] == theirs.target).all()


def test_images_of_another_size_are_rejected(folder):
    for part in ("train", "t10k"):
        write_idx(folder / f"{part}-images-idx3-ubyte", np.zeros((50 if part == "train" else 20, 32, 32)))
    with pytest.raises(ValueError, match="has 50 images of 32x32 for train, but models take 28x28"):
        load_idx(folder)


def test_constant_images_stay_finite(folder):
    write_idx(folder / "train-images-idx3-ubyte", np.full((50, 28, 28), 7))
    assert load_idx(folder).train.inputs.isfinite().all()
