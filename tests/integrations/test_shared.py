from __future__ import annotations

import logging
from types import SimpleNamespace

import pytest
import torch

from headway.integrations._shared import optimizer_to_correct

WEIGHT = torch.nn.Parameter(torch.ones(2))
SGD = torch.optim.SGD([WEIGHT], lr=0.1, momentum=0.9)
ADAM = torch.optim.AdamW([WEIGHT])


@pytest.mark.parametrize("clip_limit", [None, 0.0, -1.0])
def test_the_one_optimizer_is_taken_out_of_its_wrapper(clip_limit):
    assert optimizer_to_correct([SimpleNamespace(optimizer=SGD)], clip_limit) is SGD


def test_clipping_does_not_matter_without_momentum(caplog):
    assert optimizer_to_correct([ADAM], 1.0) is ADAM
    assert not caplog.records


@pytest.mark.parametrize(
    ("optimizers", "clip_limit", "level", "reason"),
    [
        ([SGD, ADAM], None, "WARNING", "there are 2, and Headway can correct the momentum of only one"),
        ([ADAM, ADAM], None, "INFO", "there are 2, and"),
        ([], None, "INFO", "there are 0, and"),
        ([SGD], 0.5, "WARNING", "gradients are clipped to 0.5; without clipping Headway would"),
    ],
)
def test_optimizers_that_keep_their_momentum_are_one_line_in_the_log(caplog, optimizers, clip_limit, level, reason):
    with caplog.at_level(logging.INFO, "headway"):
        assert optimizer_to_correct(optimizers, clip_limit) is None
    (record,) = caplog.records
    assert record.levelname == level
    assert reason in record.getMessage()
