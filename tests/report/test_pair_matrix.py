"""The picture of latency and bandwidth between ranks."""

from __future__ import annotations

import math

import pytest

from headway.network import PairMatrix
from headway.report import draw_pair_matrix


def test_a_pair_matrix_is_drawn(tmp_path):
    pytest.importorskip("matplotlib", reason="pictures need headway[plot]")
    nan = math.nan
    matrix = PairMatrix(latency_s=[[nan, 0.01], [0.01, nan]], bandwidth_bps=[[nan, 1e9], [1e8, nan]])
    draw_pair_matrix(matrix, tmp_path / "pairs.svg")
    text = (tmp_path / "pairs.svg").read_text()
    assert "Mbps" in text
    assert "from rank" in text
