"""Fronts: one for each decision, with all its plans."""

from __future__ import annotations

import pytest

from headway.report.page.fronts import draw_fronts
from headway.report.page.styled_runs import style_runs
from headway.report.page.tables import table_of_decisions


def test_every_decision_has_its_front_and_its_words(runs):
    adaptive, *others = style_runs(runs)
    fronts, table = draw_fronts(adaptive), table_of_decisions(adaptive)
    assert fronts is not None
    assert [frame["step"] for frame in fronts["frames"]] == [decision["step"] for decision in runs[0].decisions]
    for frame, decision in zip(fronts["frames"], runs[0].decisions, strict=True):
        rings = {trace["name"]: trace for trace in frame["data"] if "name" in trace}
        assert decision["words"].endswith(frame["words"])
        assert frame["isSwitch"] == (" -> " in frame["words"])
        assert frame["words"].replace("->", "-&gt;") in table
        assert rings["chosen plan"]["y"] == [pytest.approx(decision["gain"], rel=1e-4)]
        assert rings["chosen plan"]["text"][0].replace("<br>", " ") == decision["plan"]["label"]
        assert rings["plan before"]["y"] == [pytest.approx(decision["gain_before"], rel=1e-4)]
        labels = [text.replace("<br>", " ") for trace in frame["data"][1:-2] for text in trace["text"]]
        assert sorted(labels) == sorted(plan["label"] for plan in decision["front"])
    assert [draw_fronts(run) for run in others] == [None, None]


def test_a_front_shows_whole_steps(runs):
    fronts, decision = draw_fronts(style_runs(runs)[0]), runs[0].decisions[3]
    assert fronts is not None
    shown = sorted(x for trace in fronts["frames"][3]["data"][1:-2] for x in trace["x"])
    steps = sorted(decision["own_s"] + plan["compress_s"] + plan["sync_s"] for plan in decision["front"])
    assert shown == [pytest.approx(step_s, rel=1e-3) for step_s in steps]
    assert fronts["layout"]["xaxis"]["title"]["text"].startswith("predicted step time, ")
