"""Local steps with a real Accelerator, on two ranks."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integrations.local_checks import check_common_model, check_ends, check_own_models
from tests.launching import json_of, run_ranks

SCRIPT = Path(__file__).with_name("scripts") / "local_accelerations.py"

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    """Return what the two ranks saw."""
    folder = tmp_path_factory.mktemp("local_accelerations")
    return [json_of(printed) for printed in run_ranks(SCRIPT, folder, str(folder))]


def test_ranks_train_models_of_their_own_on_data_of_their_own(both):
    check_own_models(both, num_steps=10, num_exchanges=3)
    for saw in both:
        assert saw["lr"] == pytest.approx(0.05 * (1 / 3 + 2 / 3 * 20 / 40))  # Accelerate's schedulers count all ranks


def test_all_ranks_end_with_the_same_model(both):
    check_ends(both, "at the end", "accumulated", "scaled", "without")


def test_the_common_model_is_saved(both):
    check_common_model(both, "common")


def test_a_resumed_run_goes_on_to_the_bit(both):
    for saw in both:
        assert saw["files"] == ["mine-0.pt", "mine-1.pt"]
        assert saw["saved optimizer"] == ["param_groups", "state"]
        assert saw["loaded"] == saw["own"]
        assert saw["resumed is equal"]
        assert saw["resumed steps"] == 10


def test_without_the_file_of_a_rank_all_go_on_from_the_common_model(both):
    for saw in both:
        assert saw["warned"] == ["the checkpoint does not have Headway's residuals of all ranks: they start from 0"]
        assert saw["loaded without"] == saw["common"]


def test_steps_are_those_of_the_optimizer(both):
    first, second = both
    assert first["accumulated steps"] == second["accumulated steps"] == 3
    assert (first["scale"], second["scale"]) == (512.0, 256.0)  # one rank has skipped a step, and none has waited


def test_wrong_options_models_and_accelerators_are_rejected(both):
    parts = [
        "steps is 0",
        "config is a str",
        "give wrap the bare model",
        "do not work with FSDP",
        "start with torchrun",
    ]
    for saw in both:
        for message, part in zip(saw["refusals"], parts, strict=True):
            assert part in message
