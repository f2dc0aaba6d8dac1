import math

import numpy as np
import pytest

from headway.lab import Event, HostRule, LinkSpec, Phase, Scenario, When, load_scenario, preset_names
from headway.lab.links import all_tables


def test_phases_by_time_then_by_step_once_one_is_announced():
    scenario = load_scenario("c1")
    assert [scenario.phase_at(second, None) for second in (0, 29.9, 30, 65, 500)] == [0, 0, 1, 2, 3]
    assert [scenario.phase_at(500, step) for step in (0, 49, 50, 120, 150)] == [0, 0, 1, 2, 3]


def test_a_phase_may_end_before_the_next():
    scenario = load_scenario("flaky")
    assert [scenario.phase_at(second, None) for second in (0, 10, 14.9, 15, 29, 31, 36)] == [
        None,
        0,
        0,
        None,
        None,
        1,
        None,
    ]


def test_phases_by_step_only_wait_for_steps():
    scenario = Scenario(phases=(Phase(start=When(at_step=5), link=LinkSpec(latency_s=1.0)),))
    assert scenario.phase_at(1000, None) is None
    assert scenario.phase_at(0, 5) == 0


def test_c1_and_c2_are_those_of_the_paper():
    c1, c2 = load_scenario("c1"), load_scenario("c2").scaled(bandwidth=0.04)
    links = [(table.latency_s[0, 1], table.up_bps[0]) for table in all_tables(c1, 2)[1:]]
    assert links == [(0.001, 25e9), (0.001, 1e9), (0.05, 1e9), (0.05, 25e9)]
    links = [(round(table.latency_s[0, 1] * 1e3), table.up_bps[0] / 1e9) for table in all_tables(c2, 2)[1:]]
    expected = [(1, 25), (2, 20), (4, 15), (8, 10), (16, 5), (32, 1), (16, 5), (8, 10), (4, 15), (2, 20), (1, 25)]
    assert links == [(latency, pytest.approx(rate * 0.04)) for latency, rate in expected]
    starts = [phase.start.at_step for phase in c2.phases]
    assert np.diff(starts).tolist() == [40, 40, 40, 40, 40, 80, 40, 40, 40, 40]


def test_scaling_reaches_everything():
    scaled = load_scenario("home_lines").scaled(bandwidth=0.5)
    assert [rule.up_bps for rule in scaled.hosts] == [1e7, 5e8]
    flaky = load_scenario("flaky").scaled(time=2)
    assert flaky.events[0].start.at_s == 40
    assert flaky.events[0].duration_s == 4
    assert flaky.phases[0].end.at_s == 30
    with pytest.raises(ValueError, match="factor of bandwidth is 0"):
        flaky.scaled(bandwidth=0)


@pytest.mark.parametrize("name", preset_names())
def test_presets_are_sound(name):
    scenario = load_scenario(name)
    scenario.check_ranks(2)
    assert scenario.description
    for table in all_tables(scenario, 4):
        assert np.isfinite(table.up_bps).all()
        assert (table.bandwidth_bps() > 0).all()


def test_the_presets_that_the_documentation_names():
    assert set(preset_names()) == {"lan", "wan", "c1", "c2", "demo", "flaky", "two_regions", "home_lines"}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: LinkSpec(latency_s=-1), "latency_s is -1"),
        (lambda: LinkSpec(bandwidth_bps=0), "bandwidth_bps is 0"),
        (lambda: LinkSpec(bandwidth_bps=math.nan), "bandwidth_bps is nan"),
        (lambda: LinkSpec(loss=1.0), "loss is 1"),
        (lambda: HostRule(ranks=(0,), up_bps=10), "up_bps is 10"),
        (lambda: When(), "needs a time or a step"),
        (lambda: Event(kind="explode", ranks=(0,), start=When(at_s=0)), "'explode', but must be one of cut, kill"),
        (lambda: Event(kind="cut", ranks=(0,), start=When(at_s=0)), "a cut needs a duration"),
        (lambda: Event(kind="kill", ranks=(0,), start=When(at_s=0), duration_s=1), "a kill is for good"),
        (
            lambda: Scenario(phases=(Phase(start=When(at_s=5)), Phase(start=When(at_s=5)))),
            "phases 0 and 1 overlap: the first starts at 5 s, the second starts at 5 s",
        ),
        (
            lambda: Scenario(phases=(Phase(start=When(at_step=0), end=When(at_step=9)), Phase(start=When(at_step=5)))),
            "phases 0 and 1 overlap: the first ends at 9 steps, the second starts at 5 steps",
        ),
    ],
)
def test_bad_values_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(
    ("phases", "message"),
    [
        ((Phase(start=When(at_s=5), end=When(at_s=4)),), "phase 0 ends at 4 s, but does not start before that"),
        ((Phase(start=When(at_s=5), end=When(at_step=4)),), "phase 0 ends at 4 steps, but does not start"),
        (
            (Phase(start=When(at_s=10)), Phase(start=When(at_step=3)), Phase(start=When(at_s=5))),
            "phases 0 and 2 overlap: the first starts at 10 s, the second starts at 5 s",
        ),
    ],
)
def test_phases_out_of_order_are_refused(phases, message):
    with pytest.raises(ValueError, match=message):
        Scenario(phases=phases)


def test_a_phase_may_start_when_the_last_one_ends():
    Scenario(phases=(Phase(start=When(at_s=0), end=When(at_s=4)), Phase(start=When(at_s=4))))


def test_a_rank_out_of_range_is_named_with_its_place():
    scenario = Scenario(phases=(Phase(start=When(at_s=0), hosts=(HostRule(ranks=(7,)),)),))
    scenario.check_ranks(8)
    with pytest.raises(
        ValueError, match=r"phases\[0\]\.hosts\[0\]\.ranks: rank 7 is out of range, the ranks are 0 to 3"
    ):
        scenario.check_ranks(4)


def test_by_steps_the_clock_does_not_count_where_there_are_steps():
    """A script that takes long to start must not find the second phase in force."""
    scenario = load_scenario("c1")
    steps = scenario.by_steps()
    assert scenario.phase_at(1000.0, None) == len(scenario.phases) - 1
    assert [steps.phase_at(1000.0, step) for step in (None, 0, 49, 50, 150)] == [0, 0, 0, 1, 3]
    assert steps.by_steps() == steps
    timed = Scenario(phases=(Phase(start=When(at_s=3.0), link=LinkSpec(latency_s=0.1)),))
    assert timed.by_steps() == timed
