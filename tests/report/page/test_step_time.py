"""Where the time of a step goes."""

from __future__ import annotations

import pytest

from headway.report.page.step_time import draw_parts, parts_of_ranks, parts_of_run
from headway.report.page.styled_runs import style_runs
from tests.report.sample_runs import NUM_RANKS


def test_the_parts_of_a_step_add_up_to_it(runs):
    styled = style_runs(runs)
    ranks = parts_of_ranks(styled[0])
    assert len(ranks) == NUM_RANKS
    total_s = sum(event["step_s"][0] for event in runs[0].ranks)
    assert [sum(parts.values()) for parts in ranks] == [pytest.approx(total_s / 90)] * NUM_RANKS
    assert ranks[0]["wait"] > ranks[3]["wait"]
    gossip = parts_of_run(styled[2])
    assert gossip is not None
    assert gossip["transfer"] == pytest.approx(0.06)
    assert parts_of_ranks(styled[2]) == []


def test_a_bar_for_each_run(runs):
    figure = draw_parts(style_runs(runs))
    assert figure is not None
    assert [trace["name"] for trace in figure.data][:3] == ["computation", "compression", "waiting for other ranks"]
    assert all(trace["y"] == ["adaptive", "ddp", "gossip"] for trace in figure.data)
