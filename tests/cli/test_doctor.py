"""``headway doctor``: what it prints, and that it notices what is wrong."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from headway.cli import app
from headway.exchange import EXCHANGES
from headway.lab import possible
from headway.train import self_test as self_test_module
from headway.train.self_test import Verdict

GOOD = Verdict(exchange="dense", error=0.0, are_equal=True, was_used=True, seconds=0.1)


def test_every_exchange_is_tested_on_two_workers(monkeypatch, forked_python):
    monkeypatch.setattr(self_test_module, "sys", SimpleNamespace(executable=forked_python))
    found = CliRunner().invoke(app, ["doctor", "--json"])
    assert found.exit_code == 0, found.output
    shown = json.loads(found.stdout)
    assert [each["exchange"] for each in shown["self_test"]["exchanges"]] == list(EXCHANGES)
    assert all(each["was_used"] and each["are_equal"] for each in shown["self_test"]["exchanges"])
    assert shown["versions"]["torch"].startswith("2.")
    assert shown["kernels"]["error"] is None
    assert shown["machine"]["gloo"] is True
    assert shown["is_well"] is True


@pytest.mark.parametrize(
    ("verdict", "word"),
    [
        (replace(GOOD, error=0.1), "WRONG"),
        (replace(GOOD, are_equal=False), "UNEQUAL"),
        (replace(GOOD, was_used=False), "NOT USED"),
        (replace(GOOD, exchange="quantized", error=0.01), "good"),
    ],
)
def test_an_exchange_that_fails_is_shown(monkeypatch, verdict, word):
    monkeypatch.setattr(self_test_module, "self_test", lambda: [verdict])
    found = CliRunner().invoke(app, ["doctor"])
    assert word in found.stdout
    assert found.exit_code == (0 if word == "good" else 1)


def test_workers_that_cannot_start_are_reported(monkeypatch):
    def fail():
        raise RuntimeError("worker 1 failed: no gloo")

    monkeypatch.setattr(self_test_module, "self_test", fail)
    found = CliRunner().invoke(app, ["doctor"])
    assert found.exit_code == 1
    assert "the self-test failed: worker 1 failed: no gloo" in found.stdout


def test_missing_parts_are_shown_with_what_to_do(monkeypatch):
    monkeypatch.setattr(possible, "missing", lambda: "The lab needs /dev/net/tun: modprobe tun.")
    monkeypatch.setattr(possible, "may_make_user_namespaces", lambda: False)
    monkeypatch.setattr("headway.cli.doctor._version", lambda name: None if name == "plotly" else "1.0")
    found = CliRunner().invoke(app, ["doctor", "--no-self-test"])
    assert found.exit_code == 0
    assert "The lab needs /dev/net/tun: modprobe tun." in found.stdout
    assert "not installed: pip install 'headway[plot]'" in found.stdout
