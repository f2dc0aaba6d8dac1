"""Descriptions of exchanges, and their register."""

from __future__ import annotations

import pytest

from headway.collectives import Collective
from headway.compress import Shape
from headway.exchange import EXCHANGES, Description, Plan, default_candidates, exchange_of, register, unregister
from headway.exchange.gather import AllGatherTopK


@pytest.mark.parametrize("name", EXCHANGES)
def test_a_description_agrees_with_what_the_exchange_does(name):
    """Its collectives are those of its traffic, in order, and the size follows the ratio only if it says so."""
    description = EXCHANGES[name].description
    assert description.name == name
    shape = Shape((10_000, 50))
    for values in description.value_formats:
        small, large = (exchange_of(Plan(exchange=name, values=values, ratio=c)).traffic(shape, 4) for c in (0.01, 0.1))
        assert tuple(traffic.collective for traffic in small) == description.collectives
        assert (small[-1].num_bytes < large[-1].num_bytes) is description.uses_ratio


def test_names_are_told_apart_by_people():
    labels = [exchange.description.label for exchange in EXCHANGES.values()]
    hues = [exchange.description.hue for exchange in EXCHANGES.values()]
    assert len(set(labels)) == len(labels)
    assert len(set(hues)) == len(hues)


def test_variants_name_an_exchange():
    for exchange in EXCHANGES.values():
        assert exchange.description.variant_of in (None, *EXCHANGES)


def test_the_tuner_chooses_from_these_by_default():
    assert default_candidates() == ("dense", "allgather_topk", "star_topk", "var_topk", "union_topk", "quantized")


class Mine(AllGatherTopK):
    description = Description(name="mine", label="mine", summary="a test", collectives=(Collective.ALL_GATHER,))


def test_a_registered_exchange_makes_valid_plans_until_it_is_unregistered():
    register(Mine)
    register(Mine)  # once more does nothing
    try:
        assert exchange_of(Plan(exchange="mine")).traffic(Shape((100,)), 4)
        assert "mine" in default_candidates()
    finally:
        unregister("mine")
    with pytest.raises(ValueError, match="exchange is 'mine', but must be one of"):
        Plan(exchange="mine")


def test_a_name_that_is_taken_is_rejected():
    class Other(AllGatherTopK):
        description = Description(name="dense", label="x", summary="x", collectives=(Collective.ALL_GATHER,))

    with pytest.raises(ValueError, match="there is an exchange 'dense' already"):
        register(Other)
    assert EXCHANGES["dense"] is not Other


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"name": "two words"}, "must be an identifier"),
        ({"collectives": ()}, "at least one collective"),
        ({"value_formats": ()}, "one value format"),
        ({"tuned_formats": ("int8",)}, "not among its value_formats"),
        ({"hue": 2.0}, "the hue of x is 2.0"),
        ({"gain_factor": 0.0}, "the gain_factor of x is 0.0"),
    ],
)
def test_an_invalid_description_is_rejected(options, message):
    valid = {"name": "x", "label": "x", "summary": "x", "collectives": (Collective.ALL_GATHER,)}
    with pytest.raises(ValueError, match=message):
        Description(**{**valid, **options})
