"""Pictures that are drawn, and say what they should."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest

from headway.network import PairMatrix
from headway.report import draw_pair_matrix, draw_regime_map
from headway.tuner import Regimes

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
        assert output.read_text().count("AR-Topk, two shot") == 1


def test_a_regime_map_as_a_page_stands_alone(tmp_path):
    pytest.importorskip("plotly", reason="pages need headway[plot]")
    output = tmp_path / "map.html"
    draw_regime_map([PANEL], output, title="Who wins")
    page = output.read_text()
    assert "all-gather top-k, one shot" in page
    assert not re.search(r'<(script|link)[^>]*(src|href)="http', page)


def test_another_kind_of_file_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"map\.gif does not end in one of \.png"):
        draw_regime_map([PANEL], tmp_path / "map.gif", title="")


def test_a_pair_matrix_is_drawn(tmp_path):
    nan = math.nan
    matrix = PairMatrix(latency_s=[[nan, 0.01], [0.01, nan]], bandwidth_bps=[[nan, 1e9], [1e8, nan]])
    draw_pair_matrix(matrix, tmp_path / "pairs.svg")
    text = (tmp_path / "pairs.svg").read_text()
    assert "Mbps" in text
    assert "from rank" in text
