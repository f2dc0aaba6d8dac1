"""Text data: samples, the vocabulary, errors."""

from __future__ import annotations

import pytest

from headway.train.text import CONTEXT, NUM_CHARACTERS, load_text, number_characters, standard_docstrings


@pytest.fixture
def story(tmp_path):
    path = tmp_path / "story.txt"
    path.write_text("".join(f"{number} bottles, " for number in range(1000)), encoding="utf-8")
    return path


def test_a_target_is_the_input_shifted_by_one_character(story):
    task = load_text(story)
    inputs, targets = task.train.inputs.flatten(), task.train.targets.flatten()
    assert inputs[1:].equal(targets[:-1])
    assert task.train.inputs.shape[1] == CONTEXT
    assert task.is_text
    assert task.num_classes == NUM_CHARACTERS


def test_the_last_tenth_is_the_test_set(story):
    task = load_text(story)
    text = number_characters(story.read_text())
    assert len(task.test) * CONTEXT == pytest.approx(0.1 * len(text), rel=0.05)
    assert text[: task.train.inputs.numel()].equal(task.train.inputs.flatten())


def test_rare_characters_share_the_last_number():
    text = "".join(map(chr, range(300))) + "a" * 10
    numbers = number_characters(text)
    assert numbers.max() == NUM_CHARACTERS - 1
    assert (numbers == NUM_CHARACTERS - 1).sum() == 300 - (NUM_CHARACTERS - 1)
    assert numbers[-1] == 0  # the most frequent


def test_docstrings_of_the_standard_library_are_long_enough():
    text = standard_docstrings()
    assert len(text) > 300_000
    assert "Return" in text


@pytest.mark.parametrize(
    ("content", "said"), [(None, "cannot be read: No such file"), ("short", "has 5 characters, but 1280 are needed")]
)
def test_a_missing_or_short_text_is_named(tmp_path, content, said):
    path = tmp_path / "text.txt"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ValueError, match=said):
        load_text(path)


def test_invalid_utf8_is_accepted(tmp_path):
    path = tmp_path / "latin.txt"
    path.write_bytes(b"caf\xe9 " * 1000)
    assert len(load_text(path).train) > 10
