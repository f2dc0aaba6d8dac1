import pytest

from headway.lab import ScenarioError, load_scenario
from headway.lab.toml import parse_scenario

EVERYTHING = """
description = "all of it"

[link]
latency = "1ms"
bandwidth = "1 Gbps"
jitter = "100us"
loss = "0.5%"

[[hosts]]
rank = 3
up = "10mbps"
down = "50mbps"
access_latency = "5ms"

[[pairs]]
from = [0, 1]
to = 2
latency = "40ms"

[[pairs]]
from = 0
to = 1
bandwidth = "5mbps"
one_way = true

[[phases]]
at = "10s"
at_step = 100
until = "20s"
latency = "50ms"

[[phases.hosts]]
ranks = [0]
bandwidth = "1mbps"

[[events]]
cut = [1, 2]
at = "3s"
for = "500ms"

[[events]]
kill = 3
at_step = 7
"""


def test_everything_is_read():
    scenario = parse_scenario(EVERYTHING, "everything")
    assert scenario.description == "all of it"
    assert (scenario.link.latency_s, scenario.link.bandwidth_bps) == (0.001, 1e9)
    assert (scenario.link.jitter_s, scenario.link.loss) == (pytest.approx(0.0001), 0.005)
    (host,) = scenario.hosts
    assert (host.ranks, host.up_bps, host.down_bps, host.access_latency_s) == ((3,), 1e7, 5e7, 0.005)
    assert [(pair.sources, pair.targets) for pair in scenario.pairs] == [((0, 1), (2,)), ((2,), (0, 1)), ((0,), (1,))]
    (phase,) = scenario.phases
    assert (phase.start.at_s, phase.start.at_step, phase.end.at_s) == (10, 100, 20)
    assert (phase.hosts[0].up_bps, phase.hosts[0].down_bps) == (1e6, 1e6)
    cut, kill = scenario.events
    assert (cut.kind, cut.ranks, cut.start.at_s, cut.duration_s) == ("cut", (1, 2), 3, 0.5)
    assert (kill.kind, kill.ranks, kill.start.at_step) == ("kill", (3,), 7)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("latency = ", "net.toml: not TOML"),
        ("[link]\nlatency = '10 parsecs'", "net.toml: link.latency: '10 parsecs' is not a duration such as 20ms"),
        ("[link]\nlatency = 20", 'net.toml: link.latency: 20 has no unit: write it as in "20ms"'),
        ("[link]\nbandwidth = '-5mbps'", "net.toml: link.bandwidth: '-5mbps' is not a bandwidth"),
        ("[link]\nlatencey = '5ms'", "net.toml: link.latencey: unknown key (its value is '5ms')"),
        ("[link]\nloss = '200%'", "net.toml: link.loss: '200%' is too large"),
        ("[link]\nlatency = '2min'", "net.toml: link: latency_s is 120, but must be between 0 and 60 s"),
        ("link = 3", "net.toml: link: 3 is not a table"),
        ("speed = 3", "net.toml: speed: unknown key (its value is 3)"),
        ("[[hosts]]\nup = '1mbps'", "net.toml: hosts[0]: rank or ranks is missing"),
        ("[[hosts]]\nrank = 'first'", "net.toml: hosts[0].rank: 'first' is not a rank, a list of ranks, or one of all"),
        ("[hosts]\nrank = 1", "net.toml: hosts: must be an array of tables, [[hosts]]"),
        ("[[hosts]]\nrank = 1\nup = '0bps'", "net.toml: hosts[0]: up_bps is 0, but must be at least 1 kbps"),
        ("[[pairs]]\nfrom = 1\nto = 0\none_way = 'false'", "net.toml: pairs[0].one_way: 'false' is neither true nor"),
        ("[[phases]]\nat_step = 1" + "0" * 400, "is not a step number"),
        ("[[pairs]]\nfrom = 1", "net.toml: pairs[0]: from or to is missing"),
        ("[[phases]]\nlatency = '1ms'", "net.toml: phases[0]: at or at_step is missing"),
        ("[[phases]]\nat = '5s'\n[[phases]]\nat = '1s'", "net.toml: phases 0 and 1 overlap"),
        ("[[phases]]\nat_step = '5'", "net.toml: phases[0].at_step: '5' is not a step number"),
        ("[[phases]]\nat = '0s'\n[[phases.hosts]]\nrank = 0\nupp = 1", "net.toml: phases[0].hosts[0].upp: unknown key"),
        ("[[events]]\nat = '5s'", "net.toml: events[0]: needs exactly one of cut, kill, freeze"),
        ("[[events]]\ncut = 1\nkill = 1\nat = '5s'", "net.toml: events[0]: needs exactly one of"),
        ("[[events]]\ncut = 1\nat = '5s'", "net.toml: events[0]: a cut needs a duration"),
        ("[[events]]\nkill = 1", "net.toml: events[0]: at or at_step is missing"),
    ],
)
def test_mistakes_name_file_key_and_value(text, message):
    with pytest.raises(ScenarioError) as caught:
        parse_scenario(text, "net", "net.toml")
    assert message in str(caught.value)


def test_a_file(tmp_path):
    path = tmp_path / "slow.toml"
    path.write_text("[link]\nlatency = '7ms'\n")
    scenario = load_scenario(path)
    assert scenario.name == "slow"
    assert scenario.link.latency_s == 0.007


def test_a_file_that_is_not_text(tmp_path):
    path = tmp_path / "odd.toml"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ScenarioError, match=r"odd\.toml: not UTF-8 text"):
        load_scenario(path)


def test_neither_file_nor_preset():
    with pytest.raises(ScenarioError, match=r"nowhere\.toml is neither a file nor a preset; the presets are c1, c2"):
        load_scenario("nowhere.toml")
