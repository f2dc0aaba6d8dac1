"""Settings of a run: defaults, plain data, errors."""

from __future__ import annotations

import json

import pytest

from headway import Adaptive, Fixed
from headway.train.settings import TrainSettings, method_names


@pytest.mark.parametrize("method", method_names())
def test_the_configuration_follows_from_the_method(method):
    settings = TrainSettings(method=method, ratio=0.02, policy="fast")
    if method in ("adaptive", "local"):
        assert isinstance(settings.config, Adaptive)
        assert settings.config.policy == "fast"
    elif method == "ddp" or method.startswith("gossip-"):
        assert settings.config is None
        assert (settings.gossip_algorithm is None) == (method == "ddp")
    else:
        assert isinstance(settings.config, Fixed)
        assert (settings.config.exchange, settings.config.ratio) == (method, 0.02)


def test_defaults_follow_from_the_workload():
    digits, text = TrainSettings(), TrainSettings(workload="text")
    assert (digits.chosen_model, digits.chosen_optimizer) == ("cnn", "sgd")
    assert (text.chosen_model, text.chosen_optimizer) == ("transformer", "adamw")
    assert TrainSettings(lr=0.5).chosen_lr == 0.5


def test_settings_make_a_round_trip_through_json():
    settings = TrainSettings(method="gossip-ecd", steps=7, lr=0.25, topology="torus")
    content = json.loads(json.dumps({**settings.as_dict(), "version": 1, "workers": 4}))
    assert TrainSettings.from_dict(content) == settings


def test_steps_come_before_epochs():
    assert TrainSettings(steps=7, epochs=3).num_steps(100) == 7
    assert TrainSettings(epochs=2.5).num_steps(100) == 250
    assert TrainSettings(epochs=0.001).num_steps(100) == 1


def test_local_steps_are_a_number_or_auto():
    assert TrainSettings().steps_between_exchanges == "auto"
    assert TrainSettings(local_steps="8").steps_between_exchanges == 8


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"method": "zip"}, "there is no method 'zip': choose one of ddp, adaptive, local, dense"),
        ({"workload": "imagenet"}, "there is no workload 'imagenet': choose one of digits"),
        ({"schedule": "square"}, "there is no schedule 'square'"),
        ({"optimizer": "lion"}, "there is no optimizer 'lion'"),
        ({"steps": 0}, "steps is 0, but must be 1 or more"),
        ({"eval_every": 0}, "eval_every is 0"),
        ({"lr": 0.0}, "lr is 0.0, but must be above 0 and below 1e"),
        ({"lr": float("nan")}, "lr is nan, but must be above 0"),
        ({"ratio": 1.5}, "ratio is 1.5"),
        ({"policy": "lazy", "method": "ddp"}, "policy is 'lazy'"),
        ({"topology": "line"}, "there is no topology 'line': choose one of ring"),
        ({"values": "fp64"}, "there is no values 'fp64'"),
        ({"weight_decay": -1.0}, "weight_decay is -1.0, but must be in"),
        ({"epochs": float("inf")}, "epochs is inf"),
        ({"seed": -1}, "seed is -1"),
        ({"seed": 10**19}, "seed is 10000000000000000000, but must be below"),
        ({"method": "star_topk", "values": "int8"}, "adds values on the way"),
        ({"local_steps": "few"}, "local_steps is 'few', but must be 'auto', or a number from 1 on"),
        ({"local_steps": "0"}, "local_steps is '0'"),
    ],
)
def test_impossible_settings_are_rejected_in_one_sentence(options, said):
    with pytest.raises(ValueError, match=said):
        TrainSettings(**options)
