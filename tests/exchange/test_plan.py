"""Plans: what is valid, and what a plan says of itself."""

from __future__ import annotations

import pytest

from headway.collectives import Collective
from headway.exchange import EXCHANGES, PLAIN, Plan


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"exchange": "topk"}, "exchange is 'topk', but must be one of dense, allgather_topk"),
        ({"ratio": 0.0}, "ratio is 0.0, but must be above 0 and at most 1"),
        ({"ratio": 1.5}, "ratio is 1.5"),
        ({"ratio": float("nan")}, "ratio is nan"),
        ({"exchange": "allgather_topk", "algorithm": "tree"}, "algorithm of allgather_topk is 'tree'"),
        ({"exchange": "dense", "algorithm": "bruck"}, "algorithm of dense is 'bruck'"),
        ({"exchange": "star_topk", "values": "int8"}, "star_topk adds values on the way"),
        ({"values": "fp8"}, "values is 'fp8'"),
        ({"fusion": "layer"}, "fusion is 'layer', but must be one of auto, bucket, step"),
        ({"exchange": "quantized", "values": "fp16"}, "use bits=8 or bits=4"),
        ({"exchange": "quantized", "bits": 3}, "bits is 3"),
        ({"broadcast": "ring"}, "broadcast is 'ring'"),
    ],
)
def test_an_invalid_plan_is_rejected(options, message):
    with pytest.raises(ValueError, match=message):
        Plan(**options)


@pytest.mark.parametrize("name", EXCHANGES)
def test_a_plan_reads_what_its_exchange_says(name):
    description = EXCHANGES[name].description
    for values in description.value_formats:
        plan = Plan(exchange=name, values=values, ratio=0.05)
        assert plan.collective is description.collectives[-1]
        assert plan.sent_ratio == (0.05 if description.uses_ratio else 1.0)
        assert plan.keeps_memory or (name, values) == ("dense", "fp32")
        assert plan.label.startswith(description.label)


def test_plans_of_one_form_differ_in_ratio_algorithm_and_fusion_only():
    plan = Plan(exchange="star_topk", ratio=0.05)
    assert plan.form == Plan(exchange="star_topk", ratio=0.5, algorithm="ring", fusion="step").form
    assert plan.form != Plan(exchange="star_topk", ratio=0.05, values="fp16").form
    assert Plan(exchange="quantized", bits=8).form != Plan(exchange="quantized", bits=4).form


@pytest.mark.parametrize(
    ("options", "needs_link"),
    [
        ({"algorithm": "ring", "fusion": "step"}, False),
        ({"algorithm": "auto", "fusion": "step"}, True),
        ({"algorithm": "ring", "fusion": "auto"}, True),
        ({"exchange": "star_topk", "algorithm": "ring", "fusion": "step"}, True),
        ({"exchange": "star_topk", "algorithm": "ring", "broadcast": "tree", "fusion": "step"}, False),
    ],
)
def test_the_link_is_needed_where_something_is_left_open(options, needs_link):
    assert Plan(**options).needs_link is needs_link


def test_the_plain_plan_is_what_ddp_does():
    assert (PLAIN.exchange, PLAIN.algorithm, PLAIN.values, PLAIN.fusion) == ("dense", "native", "fp32", "bucket")
    assert PLAIN.collective is Collective.ALL_REDUCE
