"""Text data, character by character: any file, or the docstrings of Python's standard library."""

from __future__ import annotations

import ast
import sysconfig
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from headway.train.samples import Samples, Task

CONTEXT = 64
"""Length of a sample in characters."""
NUM_CHARACTERS = 256
"""Size of the vocabulary: the most frequent characters, and one number for all others."""
_TEST_SHARE = 0.1
_LEAST_LENGTH = 20 * CONTEXT
_MOST_CHARACTERS = 1_000_000


def load_text(path: Path | str | None = None) -> Task:
    """Load a text file; by default docstrings of the standard library.

    A sample is 64 characters, and its target the same shifted by one. The last tenth is the test set.

    Raises:
        ValueError: The file is missing or too short.
    """
    text, name = (standard_docstrings(), "docstrings") if path is None else (_read(Path(path)), Path(path).name)
    if len(text) < _LEAST_LENGTH:
        raise ValueError(f"{name} has {len(text)} characters, but {_LEAST_LENGTH} are needed: give a longer text")
    numbers = number_characters(text)
    border = round(len(numbers) * (1 - _TEST_SHARE))
    return Task(
        name=name, train=_windows(numbers[:border]), test=_windows(numbers[border:]), num_classes=NUM_CHARACTERS
    )


def number_characters(text: str) -> Tensor:
    """Return the number of each character: 0 for the most frequent one, and so on.

    >>> number_characters("abac").tolist()
    [0, 1, 0, 2]
    """
    counts = Counter(text)
    known = sorted(counts, key=lambda character: (-counts[character], character))[: NUM_CHARACTERS - 1]
    number_of = {character: number for number, character in enumerate(known)}
    return torch.tensor([number_of.get(character, NUM_CHARACTERS - 1) for character in text])


def standard_docstrings() -> str:
    """Return docstrings of the modules of the standard library, in order of their names, up to a million characters."""
    parts: list[str] = []
    length = 0
    for path in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py")):
        for docstring in _docstrings_of(path):
            parts.append(docstring)
            length += len(docstring) + 2
        if length >= _MOST_CHARACTERS:
            break
    return "\n\n".join(parts)[:_MOST_CHARACTERS]


def _docstrings_of(path: Path) -> Iterator[str]:
    tree = ast.parse(path.read_bytes())
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            docstring = ast.get_docstring(node)
            if docstring:
                yield docstring


def _windows(numbers: Tensor) -> Samples:
    count = (len(numbers) - 1) // CONTEXT
    inputs = numbers[: count * CONTEXT].view(count, CONTEXT)
    return Samples(inputs, numbers[1 : count * CONTEXT + 1].view(count, CONTEXT))


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise ValueError(f"the text {path} cannot be read: {error.strerror}") from None
