import pytest

from headway.units import parse_count, parse_duration_s, parse_rate_bps, parse_share


@pytest.mark.parametrize(
    ("text", "seconds"), [("0s", 0), ("250us", 250e-6), ("250µs", 250e-6), ("1e3 ms", 1), ("2H", 7200), (".5min", 30)]
)
def test_durations(text, seconds):
    assert parse_duration_s(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "20", "ms", "10 parsecs", "-3ms", "1e400s", "5 m s", "nan s", "20mbps"])
def test_what_is_not_a_duration(text):
    with pytest.raises(ValueError, match="is not a duration such as 20ms"):
        parse_duration_s(text)


@pytest.mark.parametrize("text", ["100", "100mb", "-1gbps", "fast"])
def test_what_is_not_a_bandwidth(text):
    with pytest.raises(ValueError, match="is not a bandwidth such as 100mbps"):
        parse_rate_bps(text)


def test_counts_and_shares():
    assert parse_count("8") == 8
    assert parse_count("1.66M") == 1_660_000
    assert parse_share("100%") == 1
    with pytest.raises(ValueError, match="at most 100%"):
        parse_share("2")
