"""The contract of every compressor: known sizes, honest bias, malformed messages rejected."""

from __future__ import annotations

import math

import pytest
import torch

from headway.compress import (
    Contraction,
    FullPrecision,
    MSTopK,
    RandomK,
    Sign,
    StochasticQuantizer,
    TopK,
    wanted_entries,
)
from headway.errors import MessageError
from headway.kernels import noise_key
from headway.kernels.arrays import torch_operations
from tests.compress import coding

COMPRESSORS = {
    "full": FullPrecision(),
    **{f"{bits} bits": StochasticQuantizer(bits=bits) for bits in (8, 4, 2, 1)},
    **{f"{bits} bits fixed": StochasticQuantizer(bits=bits, step=0.25) for bits in (8, 4)},
    "random half": RandomK(0.5),
    "random tenth": RandomK(0.1),
    "top tenth": TopK(0.1),
    "top tenth fp16": TopK(0.1, "fp16"),
    "bisected top tenth": MSTopK(0.1),
    "sign": Sign(),
    "contraction of 1 bit": Contraction(StochasticQuantizer(bits=1)),
    "contraction of random": Contraction(RandomK(0.1)),
}
CONTRACTIONS = ("full", "8 bits", "4 bits", "top tenth", "top tenth fp16", "sign")
TENSORS = {
    "zeros": lambda numel: torch.zeros(numel),
    "ones": lambda numel: torch.ones(numel),
    "normal": lambda numel: torch.randn(numel, generator=torch.Generator().manual_seed(numel)),
    "heavy": lambda numel: torch.randn(numel, generator=torch.Generator().manual_seed(numel)) ** 5,
}
each = pytest.mark.parametrize("name", COMPRESSORS)


def sent_by(name: str, x: torch.Tensor, key: int = 1) -> torch.Tensor:
    return coding.sent_by(COMPRESSORS[name], x, key)


@each
@pytest.mark.parametrize("numel", [1, 2, 7, 2048, 2049, 5000])
@pytest.mark.parametrize("kind", TENSORS)
def test_a_message_is_as_long_as_it_is_said_to_be_and_can_be_read(name, numel, kind):
    assert COMPRESSORS[name].num_bytes(numel) % 4 == 0
    sent = sent_by(name, TENSORS[kind](numel))
    assert sent.isfinite().all()
    if kind == "zeros":
        assert not sent.any()


@each
def test_the_type_tells_whether_it_is_unbiased(name):
    """The mean over many keys is near x, by the spread of the mean, for those who say so; and for no others."""
    x = TENSORS["normal"](500)
    many = torch.stack([sent_by(name, x, noise_key(0, step, 0)) for step in range(600)]).double()
    tolerance = 6 * many.std(dim=0) / math.sqrt(600) + 0.015 * x.abs().max()  # what is rare may not have come at all
    far = ((many.mean(dim=0) - x).abs() > tolerance).float().mean()
    fits = COMPRESSORS[name].is_unbiased and name != "4 bits fixed"  # which saturates
    assert (far == 0) if fits or name == "full" else (far < 0.1 if COMPRESSORS[name].is_unbiased else far > 0.2)


@pytest.mark.parametrize("name", [*CONTRACTIONS, "contraction of 1 bit", "contraction of random"])
@pytest.mark.parametrize("kind", TENSORS)
def test_what_contracts_leaves_less_than_there_was(name, kind):
    x = TENSORS[kind](5000)
    left = sent_by(name, x) - x
    assert float(left.norm()) <= float(x.norm()) * (1 + 1e-6)


@each
def test_adding_a_message_adds_what_decoding_gives(name):
    compressor, x = COMPRESSORS[name], TENSORS["normal"](3000)
    message = torch.empty(compressor.num_bytes(3000), dtype=torch.uint8)
    compressor.encode(x, 5, out=message)
    sent, start = torch.empty(3000), TENSORS["heavy"](3000)
    compressor.decode(message, 5, out=sent)
    total = start.clone()
    compressor.add(message, 5, out=total)
    assert sent.any()
    assert torch.equal(total, start + sent)


@each
def test_a_message_of_another_length_is_rejected_and_nothing_of_it_used(name):
    compressor, x = COMPRESSORS[name], TENSORS["normal"](301)
    message = torch.empty(compressor.num_bytes(301), dtype=torch.uint8)
    compressor.encode(x, 1, out=message)
    for wrong in (message[:-4], torch.cat([message, message[:4]]), message[:0]):
        with pytest.raises(MessageError):
            compressor.decode(wrong.clone(), 1, out=torch.empty(301))
        out = torch.zeros(301)
        with pytest.raises(MessageError):
            compressor.add(wrong.clone(), 1, out=out)
        assert not out.any()


@pytest.mark.parametrize("name", [name for name in COMPRESSORS if "fixed" not in name and "random" not in name])
def test_inf_and_nan_are_seen_by_the_receiver(name):
    """But for a fixed step, which saturates, and what is not drawn."""
    for bad in (math.inf, math.nan):
        x = TENSORS["normal"](301)
        x[150] = bad
        assert not sent_by(name, x).isfinite().all()


@each
def test_torch_operations_read_what_loops_wrote(name):
    """How tensors on other devices are handled, where there are none."""
    compressor, x = COMPRESSORS[name], TENSORS["normal"](5000)
    message = torch.empty(compressor.num_bytes(5000), dtype=torch.uint8)
    compressor.encode(x, 1, out=message)
    ours, theirs = torch.empty(5000), torch.empty(5000)
    compressor.decode(message, 1, out=ours)
    with torch_operations():
        compressor.decode(message, 1, out=theirs)
    torch.testing.assert_close(theirs, ours, rtol=1e-6, atol=0)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: StochasticQuantizer(bits=3), "bits is 3, but must be one of 8, 4, 2, 1"),
        (lambda: StochasticQuantizer(bits=8, step=-1.0), "step is -1.0"),
        (lambda: StochasticQuantizer(bits=8, step="large"), "step is 'large'"),
        (lambda: RandomK(0.0), "ratio is 0.0"),
        (lambda: TopK(1.5), "ratio is 1.5"),
        (lambda: TopK(0.1, "fp8"), "value format is 'fp8'"),
    ],
)
def test_invalid_settings_are_rejected(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(
    ("ratio", "numel", "k"), [(1.0, 7, 7), (0.01, 100, 1), (0.011, 100, 2), (1e-9, 10, 1), (0.1, 30, 3), (0.3, 10, 3)]
)
def test_k_is_the_ceiling_and_at_least_one(ratio, numel, k):
    assert wanted_entries(ratio, numel) == k
