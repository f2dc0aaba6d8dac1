"""The strategy of local steps in real fits, on two ranks."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from tests.integrations.local_checks import check_common_model, check_ends, check_own_models
from tests.launching import json_of, run_ranks

SCRIPT = Path(__file__).with_name("scripts") / "local_fits.py"

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("local_fits")


@pytest.fixture(scope="module")
def both(folder):
    """Return what the two ranks saw."""
    return [json_of(printed) for printed in run_ranks(SCRIPT, folder, str(folder))]


def test_ranks_train_models_of_their_own_on_data_of_their_own(both):
    check_own_models(both, num_steps=20, num_exchanges=6)
    for saw in both:
        assert saw["model"] == "Model"  # no DDP


def test_all_ranks_end_with_the_same_model(both):
    check_ends(both, "at the end", "manual", "scaled", "without")


def test_the_common_model_is_validated_and_saved(both):
    check_common_model(both, "validated")


def test_a_resumed_run_goes_on_to_the_bit(both):
    for saw in both:
        assert saw["resumed is equal"]
        assert (saw["resumed steps"], saw["steps from the end"]) == (20, 25)


def test_checkpoints_have_a_file_for_each_rank(both):
    names = [f"epoch={epoch}.ckpt" for epoch in range(4)]
    for saw in both:
        assert saw["kept"] == sorted(names + [f"{name}.headway-{rank}" for name in names for rank in range(2)])
        assert saw["saved optimizer"] == ["param_groups", "state"]  # any other strategy can load it


def test_without_the_file_of_a_rank_all_go_on_from_the_common_model(both):
    for saw in both:
        assert saw["warned"] == ["the checkpoint does not have Headway's residuals of all ranks: they start from 0"]
        assert saw["without"] != saw["at the end"]


def test_steps_are_those_of_the_optimizer(both):
    first, second = both
    for saw in both:
        assert saw["accumulated steps"] == 3
        assert saw["scaled steps"] == 5
    assert (first["scale"], second["scale"]) == (512.0, 256.0)  # one rank has skipped a step, and none has waited


def test_a_failure_is_told_to_the_other_rank(both):
    assert [saw["failure"] for saw in both] == ["PeerLost", "ZeroDivisionError"]
    assert all(saw["failed in time"] for saw in both)


def test_wrong_options_and_models_are_rejected(both):
    parts = ["steps is 0", "config is a str", "ddp_comm_hook, find_unused_parameters: with local", "returns 2"]
    for saw in both:
        for message, part in zip(saw["refusals"], parts, strict=True):
            assert part in message


def test_local_steps_are_logged(both, folder):
    (log,) = folder.glob("log/lightning_logs/version_0/metrics.csv")
    rows = [row for row in csv.DictReader(log.read_text().splitlines()) if row["headway/local_steps"]]
    assert [(row["step"], float(row["headway/local_steps"])) for row in rows] == [(str(5 * n), 3) for n in range(1, 5)]
