"""Settings that cannot work are refused, in words that say what to do."""

from __future__ import annotations

import re
import warnings
from dataclasses import replace

import pytest
import torch

from headway import gossip
from headway.compress import RandomK, Sign, StochasticQuantizer
from headway.gossip.settings import GossipSettings
from tests.gossip.loop import network

CANNOT = {
    "an unknown algorithm": ({"algorithm": "push-sum"}, "algorithm is 'push-sum', but must be one of dpsgd, naive"),
    "a biased compressor": (
        {"algorithm": "dcd", "compressor": Sign()},
        "dcd needs an unbiased compressor, and Sign() is not: use choco with it",
    ),
    "a relative quantiser with ecd": (
        {"algorithm": "ecd", "compressor": StochasticQuantizer(bits=8)},
        "give StochasticQuantizer a fixed step, or step='auto'",
    ),
    "random-k with ecd": ({"algorithm": "ecd", "compressor": RandomK(0.1)}, "the noise must not grow"),
    "a compressor with dpsgd": (
        {"algorithm": "dpsgd", "compressor": StochasticQuantizer(bits=8)},
        "dpsgd sends uncompressed models",
    ),
    "something else as compressor": ({"compressor": 8}, "compressor is 8"),
    "a name as compressor": ({"compressor": "8bit"}, "compressor is '8bit'"),
    "a class as compressor": ({"compressor": StochasticQuantizer}, "must be one without a memory"),
    "an automatic step for dcd": ({"compressor": StochasticQuantizer(step="auto")}, "step='auto' is for ecd"),
    "a word as consensus step": ({"algorithm": "choco", "consensus_step": "a"}, "consensus_step is 'a'"),
    "a consensus step with dcd": ({"consensus_step": 0.5}, "consensus_step is for choco"),
    "a consensus step above 1": ({"algorithm": "choco", "consensus_step": 1.5}, "above 0 and at most 1"),
    "an unknown memory": ({"memory": "large"}, "memory is 'large'"),
    "a negative interval": ({"buffer_interval": -1}, "buffer_interval is -1"),
    "no local step": ({"local_steps": 0}, "local_steps is 0"),
    "no time": ({"timeout_s": 0}, "timeout_s is 0"),
    "a seed that is none": ({"seed": "lucky"}, "seed is 'lucky'"),
}


@pytest.mark.parametrize("name", CANNOT)
def test_what_cannot_work_is_refused(name):
    options, message = CANNOT[name]
    with pytest.raises(ValueError, match=re.escape(message)):
        GossipSettings(**options)


def test_fingerprints_are_those_that_saved_states_hold():
    """States of format 1 hold them: they must not change with the code."""
    assert GossipSettings().fingerprint == 4013312114
    choco = GossipSettings(algorithm="choco", compressor=StochasticQuantizer(bits=2), consensus_step=0.5, seed=7)
    assert choco.fingerprint == 505703538
    assert choco.fingerprint == replace(choco, timeout_s=5.0, memory="lean").fingerprint  # may differ between ranks


@pytest.mark.pool
def test_dcd_warns_where_its_condition_is_violated(pool):
    few, many = pool.run(warnings_of, num_ranks=8)[0]
    assert any(
        "dcd is known to converge on this topology (ring of 8" in text and "it may diverge" in text for text in few
    )
    assert many == []


def warnings_of() -> tuple[list[str], list[str]]:
    found = []
    for bits in (4, 8):
        model = network()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            compressor = StochasticQuantizer(bits=bits)
            optimizer = gossip.wrap(model, torch.optim.SGD(model.parameters(), lr=0.1), compressor=compressor)
        optimizer.close()
        found.append([str(warning.message) for warning in caught if "dcd" in str(warning.message)])
    return found[0], found[1]
