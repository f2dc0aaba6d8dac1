"""Long runs are drawn with few points, and no point is a mean over two plans."""

from __future__ import annotations

import pytest

from headway.report import read_run
from headway.report.page.document import make_page
from headway.report.page.thinning import thin
from tests.report.sample_runs import write_adaptive


def test_long_runs_are_thinned_and_decisions_kept(tmp_path):
    run = read_run(write_adaptive(tmp_path, num_steps=2_250))
    curve = thin(run.steps, most=75)
    assert len(curve.step) < 105
    assert curve.steps_each == 30
    assert curve.step[-1] == 2_250
    assert curve.sent_bytes[-1] == run.wire_bytes
    assert max(filter(None, curve.slowest_s)) == pytest.approx(max(step["step_s"] for step in run.steps), rel=1e-4)
    pairs = list(zip(run.steps, run.steps[1:], strict=False))
    switches = [after["step"] for before, after in pairs if after["plan"] != before["plan"]]
    assert len(switches) >= 5
    assert set(switches) <= {end + 1 for end in curve.step}
    page = make_page([run], "")
    assert len(page) < 700_000
    assert page.count('"isSwitch"') == 8
    assert "A point is the mean of up to 3 steps." in page
