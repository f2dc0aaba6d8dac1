"""The time line: rows, decisions, and the link as estimated and as emulated."""

from __future__ import annotations

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
