"""Runs that are launched: what can be resumed, and what is checked before a worker starts."""

from __future__ import annotations

import json

import pytest

from headway.lab import possible
from headway.lab.network_options import NetworkOptions
from headway.report.events import COMPARISON_FILE
from headway.train import session
from headway.train.session import Request
from headway.train.settings import TrainSettings


def no_screen(title):
    raise AssertionError(f"workers would be started: {title}")


def request(**options) -> Request:
    return Request(settings=TrainSettings(**options), num_workers=2, network=NetworkOptions())


def test_every_method_of_a_comparison_is_checked_before_the_first_run(tmp_path):
    with pytest.raises(ValueError, match="there is no method 'zip'"):
        session.start(request(), ["ddp", "zip"], tmp_path / "both", no_screen)
    assert not (tmp_path / "both").exists()


def test_a_comparison_does_not_overwrite_another(tmp_path):
    (tmp_path / COMPARISON_FILE).touch()
    with pytest.raises(ValueError, match="holds runs already: give another folder, or continue with --resume"):
        session.start(request(), ["ddp"], tmp_path, no_screen)


def test_a_request_survives_its_run_directory(tmp_path):
    network = NetworkOptions(latency="5ms", bandwidth="20mbps", jitter="1ms")
    original = Request(settings=TrainSettings(steps=7), num_workers=3, network=network)
    config = json.loads(json.dumps({**original.settings.as_dict(), **original.surroundings}))
    assert config["network"] == "5ms, 20mbps, jitter 1ms"
    assert Request.from_config(config, tmp_path, None, None) == original
    assert Request.from_config(config, tmp_path, 9, None).settings.steps == 9


def test_loopback_replaces_only_a_network_that_cannot_be_emulated(monkeypatch):
    said = []
    emulated = Request(settings=TrainSettings(), num_workers=2, network=NetworkOptions(scenario="wan"))
    monkeypatch.setattr(possible, "missing", lambda: None)
    assert emulated.where_possible(said.append) is emulated
    monkeypatch.setattr(possible, "missing", lambda: "The lab needs a moon.")
    assert emulated.where_possible(said.append) == request()
    assert said == ["no emulated network, but loopback: The lab needs a moon."]


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("config.json", {"version": 1}, "was not made by headway train"),
        ("config.json", {"version": 1, "workers": "2", "method": "ddp", "network": "loopback"}, "was not made by"),
        ("config.json", {"version": 1, "workers": 2, "method": "ddp", "network": "loopback"}, "config.json is damaged"),
        (
            "config.json",
            {"version": 1, "workers": 2, "method": "ddp", "network": "loopback", "steps": "abc", "network_options": {}},
            "config.json is damaged",
        ),
        ("config.json", {"version": 1, "workers": 2, "method": "ddp", "network": "joined"}, "made under a launcher"),
        ("comparison.json", [], "comparison.json is of version None"),
        ("comparison.json", {"version": 1}, "comparison.json is damaged"),
    ],
)
def test_a_folder_that_cannot_be_resumed_is_rejected(tmp_path, name, content, said):
    (tmp_path / name).write_text(json.dumps(content))
    with pytest.raises(ValueError, match=said):
        session.resume(tmp_path, None, None, no_screen)
