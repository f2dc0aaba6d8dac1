"""Names and colours of runs."""

from __future__ import annotations

from headway.report import read_run
from headway.report.page.learning import draw_loss
from headway.report.page.styled_runs import style_runs
from headway.report.page.traffic import draw_traffic
from tests.report.sample_runs import write_ddp, write_gossip


def test_runs_of_one_method_have_different_names(tmp_path):
    folders = [write_ddp(tmp_path / name / "run", num_steps=2) for name in ("x", "y")]
    folders.append(write_ddp(tmp_path / "z" / "other", num_steps=2))
    names = [run.label for run in style_runs([read_run(folder) for folder in folders])]
    assert names == ["ddp, run, 1", "ddp, run, 2", "ddp, other"]
    long = [write_gossip(tmp_path / f"{'very-' * 9}{end}", num_steps=2) for end in "ab"]
    assert len({run.plot_name for run in style_runs([read_run(folder) for folder in long])}) == 2


def test_each_run_has_one_colour_in_all_plots(runs):
    styled = style_runs(runs)
    assert [run.colour for run in styled] == ["var(--run-0)", "var(--run-base)", "var(--run-1)"]
    traffic = draw_traffic(styled)
    assert traffic is not None
    for figure in (draw_loss(styled).options["time"], traffic):
        colours = {trace["name"]: trace["line"]["color"] for trace in figure.data}
        assert colours == {run.label: run.colour for run in styled}
    many = style_runs(runs[:1] * 9)
    assert len({(run.colour, run.dash) for run in many}) == 9
