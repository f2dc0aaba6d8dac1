"""Summaries: what each run took and sent, and its speed-up over the baseline."""

from __future__ import annotations

import pytest

from headway.report import read_run, summarise
from tests.report.sample_runs import write_ddp


def test_runs_are_compared_with_plain_ddp(runs):
    rows = summarise(runs)
    assert [row.is_baseline for row in rows] == [False, True, False]
    assert rows[0].speedup == pytest.approx(runs[1].time_s / runs[0].time_s)
    assert rows[0].num_decisions == 8
    assert rows[0].num_switches == sum(" -> " in decision["words"] for decision in runs[0].decisions) > 3
    assert rows[0].saved == pytest.approx(1 - runs[0].wire_bytes / runs[0].dense_bytes)
    assert rows[2].status == "stopped"
    assert rows[0].target_accuracy == pytest.approx(runs[0].accuracy, abs=1e-4)
    assert rows[1].time_to_target_s is not None
    assert rows[2].time_to_target_s is None


def test_plain_ddp_is_the_baseline_even_if_it_is_faster(tmp_path, runs):
    adaptive, ddp = summarise([runs[0], read_run(write_ddp(tmp_path, num_steps=20))])
    assert ddp.is_baseline
    assert adaptive.speedup is not None
    assert adaptive.speedup < 1


def test_without_plain_ddp_the_slowest_is_the_baseline(runs):
    rows = summarise([runs[2], runs[0]])
    assert [row.is_baseline for row in rows] == [False, True]
    assert rows[1].speedup == 1
    assert summarise(runs[:1])[0].speedup is None
