"""Detection of changes in single deviations."""

from __future__ import annotations

from headway.network.changes import ChangeDetector


def test_a_change_needs_three_supporting_deviations():
    detector = ChangeDetector()
    assert [detector.observe(9.0) for _ in range(2)] == [False, False]
    assert [detector.observe(0.0) for _ in range(10)] == [False] * 10
    assert [detector.observe(-0.3) for _ in range(3)] == [False, False, True]
