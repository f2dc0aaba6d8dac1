from __future__ import annotations

import re

import pytest

import headway
from headway.tuner import WarmUp, all_plans
from tests.ddp.training import EXCHANGES


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"exchange": "topk"}, f"exchange is 'topk', but must be one of {', '.join(EXCHANGES)}"),
        ({"ratio": 2}, "ratio is 2"),
        ({"ratio": "0.1"}, "ratio is '0.1'"),
        ({"exchange": "star_topk", "algorithm": "bruck"}, "algorithm of star_topk is 'bruck'"),
        ({"link": "20ms"}, "link is '20ms', but must be a headway.Link"),
        ({"interval": -1}, "interval is -1, but must be a number of steps"),
        ({"timeout_s": 0}, "timeout_s is 0"),
        ({"seed": 1.5}, "seed is 1.5"),
    ],
)
def test_wrong_options_of_fixed_say_what_to_do(options, said):
    with pytest.raises(ValueError, match=re.escape(said)):
        headway.Fixed(**options)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"policy": "best"}, "policy is 'best', but must be one of balanced, fast"),
        (
            {"min_ratio": 0.2},
            "min_ratio is 0.2 and max_ratio 0.1, but it must be 0.0001 <= min_ratio <= max",
        ),
        ({"max_ratio": "0.1"}, "max_ratio '0.1'"),
        ({"min_ratio": 0.0}, "min_ratio is 0.0"),
        ({"exchanges": ("sparse",)}, "exchanges is .*'sparse'.*, but must be some of dense, allgather_topk"),
        ({"exchanges": "dense"}, "in a tuple"),
        ({"exchanges": ([],)}, "but must be some of dense"),
        ({"journal": 5}, "journal is 5, but must be a path"),
        ({"warm_up": True}, "warm_up is True"),
        ({"warm_up": -1}, r"warm_up is -1, but must be a number, 0 \(no warm-up\) or more; try 2"),
        ({"warm_up": float("nan")}, "warm_up is nan"),
        ({"warm_up": float("inf")}, "warm_up is inf"),
        ({"warm_up": "2"}, "warm_up is '2'"),
        ({"interval": 0}, "interval is 0, but must be a number of steps, 1 or more"),
        ({"timeout_s": 0}, "timeout_s is 0"),
        ({"seed": "x"}, "seed is 'x'"),
    ],
)
def test_wrong_options_of_adaptive_say_what_to_do(options, said):
    with pytest.raises(ValueError, match=said):
        headway.Adaptive(**options)


def test_dense_is_always_to_choose_from():
    plans = headway.Adaptive(exchanges=("star_topk",)).plans
    assert {plan.exchange for plan in plans} == {"dense", "star_topk"}
    assert plans[:32] == all_plans([], ["dense"])


def test_the_warm_up_is_that_of_the_configuration_and_the_same_on_all_ranks():
    assert headway.Adaptive(max_ratio=0.05, warm_up=3).warm_up_rule == WarmUp(max_ratio=0.05, strength=3)
    assert headway.Adaptive(warm_up=2).fingerprint == headway.Adaptive(warm_up=2.0).fingerprint
    assert headway.Adaptive(warm_up=2).fingerprint != headway.Adaptive(warm_up=1).fingerprint
