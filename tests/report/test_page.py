"""The page as text and data: what is on it, what is left out, and that a run's words stay words."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest

from headway.report import Run, read_run, summarise, write_page
from headway.report.page.document import make_page
from headway.report.page.shown import exchange_of, show
from headway.report.page.thinning import thin
from headway.report.page.timeline import draw_timeline
from headway.report.page.waiting import parts_of_ranks, parts_of_run
from tests.report.sample_runs import NUM_RANKS, Writer, write_adaptive, write_ddp, write_gossip

NASTY = "</script><script>alert(1)</script><img src=x onerror=alert(2)> & %{x}"


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> list[Run]:
    folder = tmp_path_factory.mktemp("runs")
    made = (write_adaptive(folder / "adaptive"), write_ddp(folder / "ddp"), write_gossip(folder / "gossip"))
    return [read_run(each) for each in made]


def page_of(runs: list[Run]) -> str:
    return make_page(runs, "/* plotly */")


def data_of(page: str) -> dict:
    (text,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    return json.loads(text)


def sections_of(page: str) -> list[str]:
    return re.findall(r'<section id="([\w-]+)"', page)


def test_a_page_compares_runs_with_plain_ddp(runs):
    page = page_of(runs)
    assert sections_of(page) == [
        "summary", "learning", "traffic", "parts", "timeline", "fronts", "decisions", "ranks",
    ]  # fmt: skip
    assert "the speed of ddp, step by step" in page
    assert "<h1>3 runs compared</h1>" in page
    assert "cnn on fashion, 4 ranks, 1,663,370 parameters" in page
    rows = summarise(runs)
    assert [row.is_baseline for row in rows] == [False, True, False]
    assert rows[0].speedup == pytest.approx(runs[1].time_s / runs[0].time_s)
    assert rows[0].num_decisions == 8
    assert rows[2].status == "stopped"
    assert rows[0].target_accuracy == pytest.approx(runs[0].accuracy, abs=1e-4)
    assert rows[1].time_to_target_s is not None
    assert rows[2].time_to_target_s is None


def test_plain_ddp_is_the_baseline_also_where_it_is_faster(tmp_path, runs):
    adaptive, ddp = summarise([runs[0], read_run(write_ddp(tmp_path, num_steps=20))])
    assert ddp.is_baseline
    assert adaptive.speedup is not None
    assert adaptive.speedup < 1


def test_without_plain_ddp_the_slowest_is_the_baseline(runs):
    rows = summarise([runs[2], runs[0]])
    assert [row.is_baseline for row in rows] == [False, True]
    assert rows[1].speedup == 1
    assert summarise(runs[:1])[0].speedup is None


def test_every_decision_is_there_in_words_and_with_its_front(runs):
    page = page_of(runs)
    frames = data_of(page)["fronts"][0]["frames"]
    assert [frame["step"] for frame in frames] == [decision["step"] for decision in runs[0].decisions]
    for frame, decision in zip(frames, runs[0].decisions, strict=True):
        spots = {trace["name"]: trace for trace in frame["data"] if "name" in trace}
        assert decision["words"].endswith(frame["words"])
        assert frame["words"].replace("->", "-&gt;") in page
        assert spots["chosen plan"]["y"] == [pytest.approx(decision["gain"], rel=1e-4)]
        assert spots["plan before"]["y"] == [pytest.approx(decision["gain_before"], rel=1e-4)]
        plans = [trace for trace in frame["data"][1:-2] for _ in trace["x"]]
        assert len(plans) == len(decision["front"])
    assert data_of(page)["fronts"][1:] == [None, None]


def test_a_front_shows_whole_steps(runs):
    frame, decision = data_of(page_of(runs))["fronts"][0]["frames"][3], runs[0].decisions[3]
    shown = sorted(x for trace in frame["data"][1:-2] for x in trace["x"])
    steps = sorted(decision["own_s"] + plan["compress_s"] + plan["sync_s"] for plan in decision["front"])
    assert shown == [pytest.approx(step_s, rel=1e-3) for step_s in steps]


def test_the_time_line_sets_the_estimate_against_the_true_link(runs):
    figure = draw_timeline(show(runs)[0])
    assert figure is not None
    by_name = {trace["name"]: trace for trace in figure.data}
    assert by_name["link as emulated"]["y"] == [1000, 100, 25, 25]  # the later of two rows: Mbps
    assert len(by_name["link as estimated"]["y"]) == 90
    assert len(by_name["switch of plan"]["text"]) + len(by_name["stayed with the plan"]["text"]) == 8
    assert "latency rose from" in " ".join(by_name["switch of plan"]["text"]).replace("<br>", " ")
    titles = [note["text"] for note in figure.layout["annotations"]]
    assert titles[2:4] == ["<b>Plan</b>", "<b>Ratio: share of entries sent, %</b>"]


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


def test_values_that_are_not_known_are_no_trouble(tmp_path):
    writer = Writer(tmp_path, method="odd", num_steps=2)
    for step in (1, 2):
        writer.write("step", step=step, loss=float("nan"), step_s=0.1, wire_bytes=None, plan=None)
    writer.write("decision", step=2, words="step 2: odd", front=[{"exchange": "future", "gain": 0.5, "sync_s": 1.0}])
    writer.write("ranks", step=2, wait_s=None)
    writer.end()
    page = page_of([read_run(tmp_path)])
    assert "future" in json.dumps(data_of(page)["fronts"])
    assert "odd" in page


def test_the_words_of_a_run_stay_words(tmp_path):
    folders = [
        write_adaptive(tmp_path / "a", method=NASTY, num_steps=40),
        write_adaptive(tmp_path / "b", method=NASTY, num_steps=40),
    ]
    writer = Writer(tmp_path / "c", method="c", num_steps=1, network=NASTY, model=NASTY)
    writer.train(step_s=0.1, teaches=1.0, plan=NASTY, wire_bytes=5)
    writer.write("notice", step=1, text=NASTY)
    writer.end(NASTY)
    page = page_of([read_run(folder) for folder in (*folders, tmp_path / "c")])
    assert page.count("<script") == 3  # data, plotly and ours
    assert "<img" not in page
    figures = data_of(page)["figures"].values()
    drawn = [figure for choice in figures for figure in choice["options"].values()]
    told = json.dumps([[figure["data"], figure["layout"]] for figure in drawn])
    assert "<img" not in told  # plots read some HTML
    assert not any("&" in text for text in re.findall(r'"hovertemplate": "[^"]*"', told))  # and templates


def test_runs_of_one_name_are_told_apart(tmp_path):
    folders = [write_ddp(tmp_path / name / "run", num_steps=2) for name in ("x", "y")]
    folders.append(write_ddp(tmp_path / "z" / "other", num_steps=2))
    names = [each.label for each in show([read_run(folder) for folder in folders])]
    assert names == ["ddp, run, 1", "ddp, run, 2", "ddp, other"]
    long = [write_gossip(tmp_path / f"{'very-' * 9}{end}", num_steps=2) for end in "ab"]
    assert len({each.plot_name for each in show([read_run(folder) for folder in long])}) == 2


def test_each_run_has_one_colour_in_all_plots(runs):
    shown = show(runs)
    assert [each.colour for each in shown] == ["var(--run-0)", "var(--run-base)", "var(--run-1)"]
    figures = data_of(page_of(runs))["figures"]
    for name in ("loss", "traffic"):
        (first, *_) = figures[name]["options"].values()
        colours = {trace["name"]: trace["line"]["color"] for trace in first["data"]}
        assert colours == {each.label: each.colour for each in shown}
    many = show(runs[:1] * 9)
    assert len({(each.colour, each.dash) for each in many}) == 9


def test_long_runs_are_thinned_and_decisions_kept(tmp_path):
    run = read_run(write_adaptive(tmp_path, num_steps=9_000))
    curve = thin(run.steps, most=300)
    assert len(curve.step) < 330
    assert curve.steps_each == 30
    assert curve.step[-1] == 9_000
    assert curve.sent_bytes[-1] == run.wire_bytes
    assert max(filter(None, curve.slowest_s)) == pytest.approx(max(step["step_s"] for step in run.steps), rel=1e-4)
    pairs = zip(run.steps, run.steps[1:], strict=False)
    switches = [after["step"] for before, after in pairs if after["plan"] != before["plan"]]
    assert len(switches) >= 5
    starts = [end + 1 for end in curve.step]
    assert set(switches) <= set(starts)  # no point is a mean over two plans
    page = page_of([run])
    assert len(page) < 700_000
    assert len(data_of(page)["fronts"][0]["frames"]) == 8
    assert "A point is the mean of up to 9 steps." in page


def test_the_parts_of_a_step_add_up_to_it(runs):
    shown = show(runs)
    ranks = parts_of_ranks(shown[0])
    assert len(ranks) == NUM_RANKS
    total_s = sum(event["step_s"][0] for event in runs[0].ranks)
    assert [sum(parts.values()) for parts in ranks] == [pytest.approx(total_s / 90)] * NUM_RANKS
    assert ranks[0]["wait"] > ranks[3]["wait"]
    gossip = parts_of_run(shown[2])
    assert gossip is not None
    assert gossip["transfer"] == pytest.approx(0.06)
    assert parts_of_ranks(shown[2]) == []


def test_an_exchange_is_known_from_words():
    assert exchange_of("dense native") == "dense"
    assert exchange_of("all-gather top-k ring 1.2% int8") == "all-gather top-k"
    assert exchange_of("") == "not known"


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


def test_importing_the_room_does_not_import_plotly():
    code = "import sys, headway.report; print('plotly' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert result.stdout.strip() == "False"
