"""The regime map as a picture and as a page."""

from __future__ import annotations

import colorsys
import re
from dataclasses import replace

import numpy as np
import pytest

from headway.report import draw_regime_map
from headway.tuner import Regimes
from tests.report.sample_runs import registered_exchange

pytest.importorskip("matplotlib", reason="pictures need headway[plot]")
PANEL = Regimes(
    num_ranks=8,
    ratio=0.01,
    latencies_s=(0.001, 0.1),
    bandwidths_bps=(1e7, 1e9),
    winners=[[("star_topk", "ring"), ("dense", "native")], [("star_topk", "two_shot"), ("allgather_topk", "one_shot")]],
    speedups=np.array([[20.0, 1.0], [30.0, 9.0]]),
)


@pytest.mark.parametrize("suffix", [".png", ".svg"])
def test_a_regime_map_names_its_winners(tmp_path, suffix):
    output = tmp_path / f"map{suffix}"
    draw_regime_map([PANEL, PANEL], output, title="Who wins")
    assert output.stat().st_size > 5_000
    if suffix == ".svg":
        assert output.read_text().count("STAR top-k, two shot") == 1


def test_a_regime_map_as_a_page_stands_alone(tmp_path):
    pytest.importorskip("plotly", reason="pages need headway[plot]")
    output = tmp_path / "map.html"
    draw_regime_map([PANEL], output, title="Who wins")
    page = output.read_text()
    assert "all-gather top-k, one shot" in page
    assert not re.search(r'<(script|link)[^>]*(src|href)="http', page)


def test_new_and_unknown_exchanges_are_drawn(tmp_path):
    """One that is registered has its own label and hue, one that is not has its name and is grey."""
    panel = replace(PANEL, winners=[[("mine", "ring"), ("dense", "native")], [("mine", "ring"), ("gone", "ring")]])
    with registered_exchange(name="mine", label="my exchange", hue=0.9):
        draw_regime_map([panel], tmp_path / "map.svg", title="Who wins")
    text = (tmp_path / "map.svg").read_text()
    assert "<!-- my exchange, ring -->" in text
    assert "<!-- gone, ring -->" in text
    fills = [tuple(bytes.fromhex(code)) for code in re.findall(r"fill: #([0-9a-f]{6}); stroke: #666666", text)]
    hues = {colorsys.rgb_to_hls(*(part / 255 for part in fill))[::2] for fill in fills}
    assert len(fills) == 3  # a patch in the legend for each winner
    assert [hue for hue, saturation in hues if saturation > 0.1] == [pytest.approx(0.9, abs=0.01)]


def test_another_kind_of_file_is_rejected(tmp_path):
    with pytest.raises(ValueError, match=r"map\.gif does not end in one of \.png"):
        draw_regime_map([PANEL], tmp_path / "map.gif", title="")
