"""The page as a whole: its sections, exchanges known and unknown, text that stays text, and nothing loaded."""

from __future__ import annotations

import importlib
import json
import re
import sys

import pytest

import headway
from headway.report import Run, read_run, write_page
from headway.report.page.document import make_page
from tests.report.sample_runs import GOSSIP, Writer, registered_exchange, write_adaptive

NASTY = "</script><script>alert(1)</script><img src=x onerror=alert(2)> & %{x}"


def page_of(runs: list[Run]) -> str:
    return make_page(runs, "/* plotly */")


def data_of(page: str) -> dict:
    (text,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    return json.loads(text)


def sections_of(page: str) -> list[str]:
    return re.findall(r'<section id="([\w-]+)"', page)


def colours_in(traces: list[dict]) -> dict[str, str]:
    """Return the colours of markers by the name of their trace."""
    return {trace["name"]: trace["marker"]["color"] for trace in traces if "marker" in trace}


def colours_of(page: str) -> tuple[dict[str, str], dict[str, str], dict[str, str]]:
    """Return the colours of exchanges in three plots of the first run: totals, time line and fronts."""
    data = data_of(page)
    totals, timeline = data["figures"]["totals"]["options"]["all"], data["figures"]["timeline"]["options"]["0"]
    return colours_in(totals["data"]), colours_in(timeline["data"]), colours_in(data["fronts"][0]["frames"][0]["data"])


def test_a_page_compares_runs(runs):
    page = page_of(runs)
    assert sections_of(page) == [
        "summary", "learning", "traffic", "parts", "timeline", "fronts", "decisions", "ranks",
    ]  # fmt: skip
    assert "the speed of ddp, per step" in page
    assert "<h1>3 runs compared</h1>" in page
    assert "cnn on fashion, 4 ranks, 1,663,370 parameters" in page


def test_registered_exchanges_are_drawn_by_their_descriptions(runs):
    for colours in colours_of(page_of(runs)):
        assert colours["STAR top-k"] == "var(--exchange-star_topk)"
    totals, _, _ = colours_of(page_of(runs))
    assert list(totals) == [
        "dense",
        "all-gather top-k",
        "STAR top-k",
        "quantized",
        GOSSIP,
    ]  # plain DDP sends dense gradients
    assert totals[GOSSIP].startswith("var(--other-")


def test_a_new_exchange_is_drawn_with_its_label_and_colour(tmp_path):
    with registered_exchange(name="mine", label="my exchange", hue=0.9):
        run = read_run(write_adaptive(tmp_path, gather="mine"))
        page = page_of([run])
    assert "mine" in {step["exchange"] for step in run.steps}
    for colours in colours_of(page):
        assert colours["my exchange"] == "var(--exchange-mine)"
    light, dark = re.findall(r"--exchange-mine: #(\w{6})", page)
    assert light != dark
    bands = [
        shape.get("fillcolor") for shape in data_of(page)["figures"]["timeline"]["options"]["0"]["layout"]["shapes"]
    ]
    assert "var(--exchange-mine)" in bands

    later = page_of([run])  # where it is not registered
    assert "--exchange-mine" not in later
    for colours in colours_of(later):
        assert colours["mine"].startswith("var(--other-")
    frame = data_of(later)["fronts"][0]["frames"][0]["data"]
    assert next(trace for trace in frame if trace.get("name") == "mine")["text"][0].startswith("my exchange ring")


def test_runs_without_names_of_exchanges_and_labels_are_drawn(tmp_path, runs):
    """As older versions wrote them: a step has its plan in words, and plans of a decision have no label."""
    steps = [{name: value for name, value in step.items() if name != "exchange"} for step in runs[0].steps]
    decisions = json.loads(json.dumps(runs[0].decisions))
    for decision in decisions:
        for plan in (decision["plan"], decision["before"], *decision["front"]):
            del plan["label"]
    old = Run(folder=tmp_path, start=runs[0].start, steps=steps, decisions=decisions)
    totals, timeline, fronts = colours_of(page_of([old]))
    plans = {step["plan"] for step in steps}
    assert totals.keys() == plans
    assert plans <= timeline.keys()
    assert fronts["STAR top-k"] == "var(--exchange-star_topk)"
    chosen = data_of(page_of([old]))["fronts"][0]["frames"][0]["data"][-1]
    assert chosen["text"] == [decisions[0]["plan"]["exchange"]]


def test_sections_without_data_are_left_out(runs):
    page = page_of([runs[2]])
    assert sections_of(page) == ["summary", "learning", "traffic", "parts", "timeline", "decisions"]
    assert "the step of gossip is 0.31 from now on" in page
    assert '<select id="run">' not in page
    assert 'id="decision"' not in page
    assert data_of(page)["figures"]["accuracy"]["options"] == {}


def test_a_run_without_a_single_step_has_a_page(tmp_path, runs):
    Writer(tmp_path, method="new", num_steps=9).log.close()
    empty = read_run(tmp_path)
    assert sections_of(page_of([empty])) == ["summary"]
    assert "running, or killed" in page_of([empty, runs[1]])


def test_unknown_values_do_no_harm(tmp_path):
    writer = Writer(tmp_path, method="strange", num_steps=2)
    for step in (1, 2):
        writer.write("step", step=step, loss=float("nan"), step_s=0.1, wire_bytes=None, plan=None)
    writer.write("decision", step=2, words="step 2: hm", front=[{"exchange": "future", "gain": 0.5, "sync_s": 1.0}])
    writer.write("ranks", step=2, wait_s=None)
    writer.end()
    page = page_of([read_run(tmp_path)])
    assert "future" in json.dumps(data_of(page)["fronts"])
    assert "strange" in page


def test_the_text_of_a_run_stays_text(tmp_path):
    folders = [write_adaptive(tmp_path / name, method=NASTY, num_steps=40) for name in "ab"]
    writer = Writer(tmp_path / "c", method="c", num_steps=1, network=NASTY, model=NASTY)
    writer.train(step_s=0.1, progress=1.0, exchange=NASTY, plan=NASTY, wire_bytes=5)
    writer.write("notice", step=1, text=NASTY)
    writer.end(NASTY)
    page = page_of([read_run(folder) for folder in (*folders, tmp_path / "c")])
    assert page.count("<script") == 3  # data, plotly and ours
    assert "<img" not in page
    choices = data_of(page)["figures"].values()
    figures = [figure for choice in choices for figure in choice["options"].values()]
    text = json.dumps([[figure["data"], figure["layout"]] for figure in figures])
    assert "<img" not in text  # plots interpret some HTML
    assert not any("&" in template for template in re.findall(r'"hovertemplate": "[^"]*"', text))


def test_a_page_loads_nothing_and_runs_our_scripts_alone(tmp_path, runs):
    pytest.importorskip("plotly", reason="pages need headway[plot]")
    output = tmp_path / "new" / "report.html"
    write_page(runs, output)
    page = output.read_text(encoding="utf-8")
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]*)"', page)
    assert "default-src 'none'" in policy
    assert policy.count("'sha256-") == 2
    outside = re.sub(r"<script>.*?</script>", "", page, flags=re.DOTALL)
    assert not re.search(r"(src|href)=.?https?:", outside)
    assert 3e6 < len(page) < 7e6


def test_a_page_needs_a_run_and_plotly(tmp_path, runs, monkeypatch):
    with pytest.raises(ValueError, match="no run to report"):
        write_page([], tmp_path / "page.html")
    monkeypatch.setitem(sys.modules, "plotly.offline", None)
    with pytest.raises(ValueError, match=r"plotly is not installed: pip install 'headway\[plot\]'"):
        write_page(runs, tmp_path / "page.html")


def test_importing_the_package_imports_no_plotting_library(monkeypatch):
    monkeypatch.setattr(headway, "report", headway.report)  # put back in the end, as are the modules
    for name in [name for name in sys.modules if name.startswith("headway.report")]:
        monkeypatch.delitem(sys.modules, name)
    for name in ("plotly", "matplotlib"):
        monkeypatch.setitem(sys.modules, name, None)  # importing it now fails
    assert importlib.import_module("headway.report").write_page is not write_page
