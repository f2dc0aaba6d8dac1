"""The callback of local steps in real trainings, on two ranks."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integrations.local_checks import check_common_model, check_ends
from tests.launching import json_of, run_ranks

SCRIPT = Path(__file__).with_name("scripts") / "local_trainings.py"

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    """Return what the two ranks saw."""
    folder = tmp_path_factory.mktemp("local_trainings")
    return [json_of(printed) for printed in run_ranks(SCRIPT, folder, str(folder))]


def test_ranks_train_models_of_their_own(both):
    first, second = both
    assert first["own"] != second["own"]
    for saw in both:
        assert not saw["is in DDP"]
        assert (saw["steps"], saw["exchanges"]) == (8, 2)
        assert saw["saved"] > 0.8
        assert saw["heard"] == 5  # four times while it trains, and the end; not the evaluations


def test_all_ranks_end_with_the_same_model(both):
    check_ends(both, "at the end", "accumulated", "second", "without")


def test_the_common_model_is_evaluated_and_saved(both):
    check_common_model(both, "evaluated")


def test_a_resumed_run_goes_on_to_the_bit(both):
    for saw in both:
        assert saw["files"] == ["headway-0.pt", "headway-1.pt"]
        assert saw["saved optimizer"] == ["param_groups", "state"]
        assert saw["resumed is equal"]
        assert saw["resumed steps"] == 8


def test_without_the_file_of_a_rank_all_go_on_from_the_common_model(both):
    for saw in both:
        assert saw["warned"] == ["the checkpoint does not have Headway's residuals of all ranks: they start from 0"]
        assert saw["without"] != saw["at the end"]


def test_the_best_model_is_kept(both):
    for saw in both:
        assert saw["best"] != "checkpoint-8"  # it is not the last, which stays in place until the best is loaded
        assert saw["best is loaded"]


def test_each_train_counts_its_own_steps(both):
    for saw in both:
        assert saw["accumulated steps"] == 3
        assert saw["second steps"] == 8


def test_settings_that_do_not_suit_local_steps_are_warned_of(both):
    for saw in both:
        (warning,) = saw["warned of counting"]
        assert "set average_tokens_across_devices=False" in warning
        assert saw["alone"] == ["there is one process, so Headway does nothing: start with torchrun"]


def test_wrong_options_are_rejected(both):
    parts = ["not a Fixed", "steps is 0", "config is a str", "not with FSDP", "make the callback before train()"]
    for saw in both:
        for message, part in zip(saw["refusals"], parts, strict=True):
            assert part in message
