"""The time line: rows, decisions, and the link as estimated and as emulated."""

from __future__ import annotations

from dataclasses import replace

from headway.report.page.styled_runs import style_runs
from headway.report.page.timeline import draw_timeline


def test_the_time_line_compares_the_estimated_with_the_emulated_link(runs):
    figure = draw_timeline(style_runs(runs)[0])
    assert figure is not None
    by_name = {trace["name"]: trace for trace in figure.data}
    assert by_name["emulated link"]["y"] == [1000, 100, 25, 25]  # the later of two rows: Mbps
    assert len(by_name["estimated link"]["y"]) == 90
    assert len(by_name["plan changed"]["text"]) + len(by_name["plan kept"]["text"]) == 8
    assert "latency rose from" in " ".join(by_name["plan changed"]["text"]).replace("<br>", " ")
    titles = [note["text"] for note in figure.layout["annotations"]]
    assert titles[2:4] == ["<b>Plan</b>", "<b>Ratio: share of entries sent, %</b>"]


def test_bands_cover_the_time_of_each_plan(runs):
    run = style_runs(runs)[0]
    figure = draw_timeline(run)
    assert figure is not None
    bands = [shape for shape in figure.layout["shapes"] if shape["type"] == "rect"]
    changes = sum(
        one["plan"] != other["plan"] for one, other in zip(run.record.steps, run.record.steps[1:], strict=False)
    )
    assert len(bands) == changes + 1 > 4
    first = run.record.steps[0]["exchange"]
    assert bands[0]["fillcolor"] == f"var(--exchange-{first})"


def test_local_steps_have_rows_of_their_own_and_lines_across_steps_without_an_exchange(runs):
    between = {"ratio": None, "gain": None, "num_exchanges": 0, "wire_bytes": 0}
    steps = [
        {**step, "local_steps": 8, "agreement": 0.4, **(between if step["step"] % 8 else {"wire_bytes": 8000})}
        for step in runs[0].steps
    ]
    (run,) = style_runs([replace(runs[0], steps=steps)])
    figure = draw_timeline(run)
    assert figure is not None
    titles = [note["text"] for note in figure.layout["annotations"]]
    assert "<b>Local steps: from one exchange to the next</b>" in titles
    assert "<b>Agreement: how much ranks move the same way</b>" in titles
    by_name = {trace["name"]: trace for trace in figure.data}
    assert set(by_name["local steps"]["y"]) == {8}
    assert by_name["ratio"]["y"][:7] == [None] * 7
    assert by_name["ratio"]["connectgaps"]
    assert set(run.curve.wire_bytes) == {None, 1000}  # an exchange is for 8 steps
    assert run.curve.sent_bytes[-1] == 11 * 8000


def test_a_run_without_local_steps_has_no_row_of_them(runs):
    figure = draw_timeline(style_runs(runs)[0])
    assert figure is not None
    assert not any("ocal steps" in note["text"] for note in figure.layout["annotations"])
