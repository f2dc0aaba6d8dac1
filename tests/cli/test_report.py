"""``headway report``: where the page goes, JSON, errors."""

from __future__ import annotations

import importlib.util
import json

import pytest
from typer.testing import CliRunner

from headway.cli import app
from tests.report.sample_runs import write_adaptive, write_ddp


def report(*args):
    return CliRunner().invoke(app, ["report", *map(str, args)])


@pytest.fixture
def comparison(tmp_path):
    write_adaptive(tmp_path / "runs" / "adaptive", num_steps=12)
    write_ddp(tmp_path / "runs" / "ddp", num_steps=12)
    return tmp_path / "runs"


def test_the_page_of_a_run_is_in_its_folder(comparison):
    pytest.importorskip("plotly", reason="pages need headway[plot]")
    found = report(comparison / "adaptive")
    assert found.exit_code == 0
    page = comparison / "adaptive" / "report.html"
    assert found.stdout == f"wrote {page}\n"
    assert "<h1>adaptive</h1>" in page.read_text(encoding="utf-8")


def test_a_folder_of_runs_is_compared_in_one_page(comparison):
    pytest.importorskip("plotly", reason="pages need headway[plot]")
    assert report(comparison).stdout == f"wrote {comparison / 'report.html'}\n"
    assert "<h1>adaptive and ddp</h1>" in (comparison / "report.html").read_text(encoding="utf-8")


def test_the_page_of_several_is_in_the_current_folder_and_may_be_opened(comparison, monkeypatch, tmp_path):
    pytest.importorskip("plotly", reason="pages need headway[plot]")
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    monkeypatch.chdir(tmp_path)
    found = report(comparison / "ddp", comparison / "adaptive", "--open")
    assert found.stdout == "wrote report.html\n"
    assert opened == [(tmp_path / "report.html").as_uri()]


def test_a_summary_as_json_needs_no_page(comparison, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    found = report(comparison, "--json")
    assert found.exit_code == 0
    adaptive, ddp = json.loads(found.stdout)
    assert (adaptive["name"], ddp["name"]) == ("adaptive", "ddp")
    assert ddp["is_baseline"]
    assert adaptive["speedup"] == pytest.approx(ddp["time_s"] / adaptive["time_s"])
    assert not (comparison / "report.html").exists()


def test_json_and_a_page_do_not_mix_on_standard_output(comparison):
    pytest.importorskip("plotly", reason="pages need headway[plot]")
    output = comparison / "both.html"
    found = report(comparison, "--json", "--output", output)
    assert len(json.loads(found.stdout)) == 2
    assert found.stderr == f"wrote {output}\n"
    assert output.exists()


def test_errors_are_one_sentence_that_says_what_to_do(comparison, tmp_path, monkeypatch):
    def error_of(*args) -> str:
        found = report(*args)
        assert found.exit_code == 2
        assert found.stdout == ""
        (line,) = found.stderr.splitlines()
        assert line.startswith("headway report: ")
        return line

    assert "nowhere is not a folder: give a run directory" in error_of(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    assert "has no config.json; headway train --output makes one" in error_of(tmp_path / "empty")
    (comparison / "ddp" / "config.json").write_text('{"version": 99}')
    assert "version 99, but this headway reads version 1: use the headway that wrote it" in error_of(comparison)
    taken = tmp_path / "taken"
    taken.write_text("")
    assert f"{taken}: File exists" in error_of(comparison / "adaptive", "--output", taken / "page.html")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert "plotly: pip install 'headway[plot]'" in error_of(comparison / "adaptive")
