"""Labels, order, colours and markers of exchanges, whether they are registered or not."""

from __future__ import annotations

import re

import pytest

from headway.exchange import EXCHANGES
from headway.report.exchange_styles import (
    _parse,
    colour_of,
    in_order,
    label_of,
    luminance,
    style_sheet,
    symbol_of,
)
from headway.report.page.sections import asset
from tests.report.sample_runs import registered_exchange


def variables(css: str) -> list[dict[str, str]]:
    """Return the variables of a style sheet, in light and in dark."""
    return [dict(re.findall(r"(--[\w-]+): (#[0-9a-f]{6})", part)) for part in css.split("prefers-color-scheme: dark")]


def contrast(one: str, other: str) -> float:
    dark, light = sorted(luminance(_parse(colour)) for colour in (one, other))
    return (light + 0.05) / (dark + 0.05)


def test_each_exchange_has_a_colour_that_can_be_seen():
    for ours, panel in zip(variables(style_sheet()), variables(asset("page.css")), strict=False):
        assert list(ours) == [f"--exchange-{name}" for name in EXCHANGES]
        assert len(set(ours.values())) == len(EXCHANGES)
        for name, exchange in EXCHANGES.items():
            least = 2.4 if exchange.description.hue is None else 2.9  # grey is for what others are compared with
            assert contrast(ours[f"--exchange-{name}"], panel["--panel"]) > least


def test_a_new_exchange_is_styled_by_its_description():
    assert label_of("mine") == "mine"
    assert colour_of("mine").startswith("var(--other-")
    with registered_exchange(name="mine", label="my exchange", hue=0.9):
        assert label_of("mine") == "my exchange"
        assert colour_of("mine") == "var(--exchange-mine)"
        assert style_sheet().count("--exchange-mine:") == 2
        assert in_order(["b", "mine", "a", "star_topk", "dense", "mine"]) == ["dense", "star_topk", "mine", "a", "b"]
        symbols = [symbol_of(name) for name in (*EXCHANGES, "gone")]
        assert len(set(symbols)) == len(symbols)
    assert "mine" not in style_sheet()


def test_luminance_is_that_of_wcag():
    assert luminance((1, 1, 1)) == pytest.approx(1)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)
