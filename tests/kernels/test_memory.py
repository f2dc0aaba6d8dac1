import contextlib
import copy

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from headway.kernels import (
    VALUE_FORMATS,
    Memory,
    decode_values,
    device,
    feedback,
    gain_curve,
    radix,
    select_topk,
    value_bytes,
)
from headway.kernels.arrays import flat_float32, flat_raw, torch_operations
from headway.kernels.velocity import AT_REST
from tests.kernels.data import DISTRIBUTIONS, SIZES, gaussian, heavy_tailed, same_bits, spikes_of_every_kind

RATIOS = [0.1, 0.01, 0.001]


def _k(numel: int, ratio: float) -> int:
    return min(numel, max(1, -int(-ratio * numel // 1)))


def _plain_step(residual, gradient, k):
    """The definition of the fused step: residual after, indices, values."""
    total = residual + gradient.float()
    indices = select_topk(total, k)
    values = total[indices.long()]
    total[indices.long()] = 0
    total[~total.isfinite()] = 0
    return total, indices, values


def _count_passes(monkeypatch) -> list[str]:
    """Record which path each selection took."""
    paths = []
    for name in ("_pick_in_one_pass", "_pick_by_counting"):
        original = getattr(Memory, name)

        def recorded(self, *args, _name=name, _original=original):
            result = _original(self, *args)
            paths.append(_name if result is not None else "miss")
            return result

        monkeypatch.setattr(Memory, name, recorded)
    return paths


@pytest.mark.parametrize("name", DISTRIBUTIONS)
@pytest.mark.parametrize("numel", SIZES)
def test_a_step_equals_its_definition(name, numel, threads):
    for ratio in RATIOS:
        memory, residual, k = Memory(numel), torch.zeros(numel), _k(numel, ratio)
        for step in range(4):
            gradient = DISTRIBUTIONS[name](numel) * (1 + step)
            residual, indices, values = _plain_step(residual, gradient, k)
            selection = memory.select(gradient, k)
            assert torch.equal(selection.indices, indices)
            assert same_bits(selection.values, values)
            assert torch.equal(memory.residual, residual)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("make", [gaussian, heavy_tailed], ids=["gaussian", "heavy-tailed"])
def test_nothing_is_lost_over_many_steps(dtype, make, threads, monkeypatch):
    """sent + residual == gradient + residual before, to the bit; most steps take one pass."""
    paths = _count_passes(monkeypatch)
    numel, k = 30_000, 300
    memory = Memory(numel)
    for step in range(40):
        gradient = make(numel, seed=step).to(dtype)
        before = memory.residual + gradient.float()
        selection = memory.select(gradient, k)
        sent = torch.zeros(numel)
        sent[selection.indices.long()] = selection.values
        assert torch.equal(sent + memory.residual, before)
        assert not memory.residual[selection.indices.long()].any()
    assert paths.count("_pick_in_one_pass") >= 20, paths
    assert paths[0] == "_pick_by_counting"


def test_a_missed_threshold_gives_the_same_result(threads, monkeypatch):
    paths = _count_passes(monkeypatch)
    numel, k = 30_000, 300
    memory = Memory(numel)
    for step, scale in enumerate([1.0, 1.0, 1e-6, 1e6, 1.0]):
        memory.residual.zero_()
        gradient = gaussian(numel, seed=step) * scale
        residual, indices, _ = _plain_step(torch.zeros(numel), gradient, k)
        assert torch.equal(memory.select(gradient, k).indices, indices)
        assert torch.equal(memory.residual, residual)
    assert paths.count("miss") >= 2, paths


def test_all_candidates_in_one_chunk(threads):
    """Layers differ in scale: one thread's part may hold nearly all of the top k."""
    numel, k = 30_000, 1500
    memory, residual = Memory(numel), torch.zeros(numel)
    for step in range(4):
        gradient = gaussian(numel, seed=step)
        gradient[5000:] *= 1e-3
        residual, indices, _ = _plain_step(residual, gradient, k)
        assert torch.equal(memory.select(gradient, k).indices, indices)
        assert torch.equal(memory.residual, residual)


@pytest.mark.parametrize("value_format", [each for each in VALUE_FORMATS if each != "fp32"])
def test_rounding_stays_in_the_residual(value_format, threads):
    numel, k = 20_000, 2000
    memory = Memory(numel)
    for step in range(6):
        gradient = gaussian(numel, seed=step)
        before = (memory.residual + gradient).double()
        selection = memory.select(gradient, k, value_format=value_format)
        assert selection.payload.numel() == value_bytes(k, value_format)
        arrived = torch.empty(k)
        decode_values(selection.payload, k, value_format, out=arrived)
        assert not torch.equal(arrived, selection.values)
        sent = torch.zeros(numel, dtype=torch.float64)
        sent[selection.indices.long()] = arrived.double()
        torch.testing.assert_close(sent + memory.residual, before, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("value_format", VALUE_FORMATS)
def test_inf_and_nan_are_sent_but_never_stay_in_the_residual(value_format):
    numel = 5000
    for k in (1, 20, 4000):
        memory = Memory(numel)
        memory.select(gaussian(numel), k)
        selection = memory.select(spikes_of_every_kind(numel), k, value_format=value_format)
        arrived = torch.empty(k)
        decode_values(selection.payload, k, value_format, out=arrived)
        assert not arrived.isfinite().all()
        assert memory.residual.isfinite().all()


def test_values_beyond_fp16_saturate_and_keep_the_rest():
    memory = Memory(2)
    selection = memory.select(torch.tensor([1e6, 1.0]), 1, value_format="fp16")
    assert selection.payload.view(torch.float16)[0] == 65504
    assert memory.residual.tolist() == [1e6 - 65504, 1.0]


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_k_of_zero_takes_nothing(name):
    memory, gradient = Memory(5000), DISTRIBUTIONS[name](5000)
    for _ in range(3):
        selection = memory.select(gradient, 0)
        assert selection.indices.numel() == selection.payload.numel() == 0
    torch.testing.assert_close(memory.residual, (3 * gradient).nan_to_num(0, 0, 0))
    memory.select(torch.full((5000,), torch.inf), 0)
    assert memory.residual.isfinite().all()


def test_k_of_zero_and_k_of_all():
    memory = Memory(3000)
    assert memory.select(gaussian(3000), 0).indices.numel() == 0
    assert torch.equal(memory.residual, gaussian(3000))
    assert torch.equal(memory.select(torch.zeros(3000), 3000).values, gaussian(3000))
    assert not memory.residual.any()


DTYPES = [torch.float32, torch.float16, torch.bfloat16]


def _assert_same_curve(curve, expected):
    assert curve.energy == pytest.approx(expected.energy, rel=1e-12)
    np.testing.assert_allclose(curve.gains, expected.gains, rtol=1e-12)


def _check_gain_curves(before, gradient):
    """One fused pass equals the three it replaces."""
    memory, other = Memory(before.numel(), residual=before.clone()), Memory(before.numel(), residual=before.clone())
    of_gradient, of_sum = memory.accumulate_with_gain_curves(gradient)
    other.accumulate(gradient)
    _assert_same_curve(of_gradient, gain_curve(gradient))
    _assert_same_curve(of_sum, gain_curve(other.residual))
    assert torch.equal(memory.residual.isnan(), other.residual.isnan())
    assert same_bits(memory.residual.nan_to_num(7.0), other.residual.nan_to_num(7.0))
    assert memory.has_nonfinite == other.has_nonfinite
    return memory


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_gain_curves_equal_those_of_separate_passes(name, dtype, threads):
    for numel in SIZES:
        _check_gain_curves(heavy_tailed(numel, seed=3), DISTRIBUTIONS[name](numel).to(dtype))


@given(bits=hnp.arrays(np.uint32, hnp.array_shapes(max_dims=1, max_side=600)), seed=st.integers(0, 99))
def test_gain_curves_of_any_bits(bits, seed):
    _check_gain_curves(gaussian(bits.size, seed), torch.from_numpy(bits.view(np.float32)))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("numel", [1, 255, 256, 2049])
def test_gain_curves_count_into_the_same_bins(dtype, numel):
    gradient, residual = spikes_of_every_kind(numel).to(dtype), gaussian(numel, seed=9)
    expected_sum = Memory(numel, residual=residual.clone())
    expected_sum.accumulate(gradient)
    counts = radix.new_counts()
    feedback.accumulate_and_count_both(residual.numpy(), flat_raw(gradient), residual.numpy()[:0], AT_REST, counts)
    for column, x in enumerate((flat_float32(gradient), expected_sum.residual.numpy())):
        expected = radix.new_counts()
        radix.count(x, expected)
        np.testing.assert_array_equal(counts[:, column], radix.bin_totals(expected))


@pytest.mark.parametrize("spike", [torch.nan, torch.inf, -torch.inf])
def test_gain_curves_report_what_is_not_finite(spike, threads):
    gradient = gaussian(10_000)
    gradient[-1] = spike
    memory = _check_gain_curves(gaussian(10_000, seed=1), gradient)
    assert memory.has_nonfinite
    memory.drop_nonfinite()
    memory.accumulate_with_gain_curves(gaussian(10_000))
    assert not memory.has_nonfinite


def test_gain_curves_of_a_strided_gradient():
    _check_gain_curves(gaussian(4000, seed=1), gaussian(4000).view(40, 100).t())


def test_gain_curves_by_torch_operations():
    before, gradient = heavy_tailed(20_000, seed=1), gaussian(20_000).to(torch.bfloat16)
    expected, memory = Memory(20_000, residual=before.clone()), Memory(20_000, residual=before.clone())
    curves = expected.accumulate_with_gain_curves(gradient)
    with torch_operations():
        others = memory.accumulate_with_gain_curves(gradient)
    assert same_bits(memory.residual, expected.residual)
    for curve, other in zip(curves, others, strict=True):
        assert curve.energy == pytest.approx(other.energy, rel=1e-12)
        np.testing.assert_allclose(curve.gains, other.gains, rtol=0.008)


def test_gain_curves_need_a_gradient_that_fits():
    with pytest.raises(ValueError, match="gradient has 5 entries, but this memory has 4"):
        Memory(4).accumulate_with_gain_curves(torch.zeros(5))
    with pytest.raises(ValueError, match="float64"):
        Memory(4).accumulate_with_gain_curves(torch.zeros(4, dtype=torch.float64))


def test_taking_indices_chosen_elsewhere():
    memory = Memory(3000)
    memory.accumulate(gaussian(3000).to(torch.bfloat16))
    before = memory.residual.clone()
    indices = torch.tensor([3, 70, 2999], dtype=torch.int32)
    taken = memory.take(indices)
    assert torch.equal(taken.values, before[indices.long()])
    before[indices.long()] = 0
    assert torch.equal(memory.residual, before)


def test_taking_drops_what_is_not_finite():
    memory = Memory(3000)
    gradient = gaussian(3000)
    gradient[5], gradient[6], gradient[7] = torch.nan, torch.inf, -torch.inf
    memory.accumulate(gradient)
    assert memory.has_nonfinite
    memory.take(torch.tensor([0, 1], dtype=torch.int32))
    assert not memory.has_nonfinite
    assert memory.residual.isfinite().all()
    memory.accumulate(gaussian(3000))
    assert not memory.has_nonfinite


def test_peeking_finds_what_a_selection_takes_and_leaves_it():
    memory, other = Memory(3000), Memory(3000)
    for step in range(3):
        peeked, selected = memory.peek(gaussian(3000, seed=step), 30), other.select(gaussian(3000, seed=step), 30)
        assert torch.equal(peeked.indices, selected.indices)
        assert same_bits(peeked.values, selected.values)
        assert torch.equal(memory.residual, other.residual.index_add(0, selected.indices, selected.values))
        memory.take(peeked.indices)


def test_a_residual_may_be_part_of_a_larger_one():
    whole = torch.zeros(1000)
    memory = Memory(400, residual=whole[100:500])
    memory.select(gaussian(400), 4)
    assert whole[100:500].count_nonzero() == 396
    assert not whole[:100].any()
    with pytest.raises(ValueError, match="residual has 400 entries, but must have 300"):
        Memory(300, residual=whole[100:500])


def test_a_strided_gradient():
    gradient = gaussian(4000).view(40, 100).t()
    memory, straight = Memory(4000), Memory(4000)
    for _ in range(2):
        indices = memory.select(gradient, 40).indices
        assert torch.equal(indices, straight.select(gradient.contiguous(), 40).indices)


def test_an_unknown_value_format_changes_nothing():
    memory = Memory(100)
    memory.accumulate(gaussian(100))
    before = memory.residual.clone()
    with pytest.raises(ValueError, match="value format is 'fp8'"):
        memory.select(gaussian(100), 10, value_format="fp8")
    with pytest.raises(ValueError, match="value format is 'fp8'"):
        memory.take(torch.tensor([1]), value_format="fp8")
    assert torch.equal(memory.residual, before)


def test_int8_keeps_finite_values_of_a_block_that_overflowed():
    gradient = gaussian(3000)
    gradient[17] = torch.inf
    memory = Memory(3000)
    memory.select(gradient, 3000, value_format="int8")
    gradient[17] = 0
    torch.testing.assert_close(memory.residual[:2048], gradient[:2048])


def test_taking_an_index_out_of_range_is_refused():
    for index in (-1, 3000):
        with pytest.raises(ValueError, match=f"index {index} is outside"):
            Memory(3000).take(torch.tensor([index], dtype=torch.int32))


def test_a_gradient_of_another_type_is_refused():
    with pytest.raises(ValueError, match="float64"):
        Memory(4).accumulate(torch.zeros(4, dtype=torch.float64))


def test_a_gradient_of_another_size_is_refused():
    with pytest.raises(ValueError, match="gradient has 5 entries, but this memory has 4"):
        Memory(4).select(torch.zeros(5), 1)


@pytest.mark.parametrize("value_format", VALUE_FORMATS)
def test_torch_operations_give_the_same(value_format):
    """The path of accelerators, run on the CPU."""
    ours, theirs = Memory(5000), Memory(5000)
    for step in range(3):
        gradient = spikes_of_every_kind(5000, seed=step)
        expected = ours.select(gradient, 500, value_format=value_format)
        theirs.accumulate(gradient)
        indices, values = device.extract_topk(theirs.residual, 500)
        assert torch.equal(indices, expected.indices)
        assert same_bits(values, expected.values)
        theirs._encode(indices, values, value_format)
        assert torch.equal(theirs.residual, ours.residual)


def test_buffers_are_kept_between_steps():
    memory = Memory(30_000)
    for step in range(12):
        memory.select(gaussian(30_000, seed=step), 300)
    before = copy.copy(memory._buffers.__dict__)
    memory.select(gaussian(30_000, seed=99), 300)
    assert all(memory._buffers.__dict__[name] is array for name, array in before.items())


def _undo_buffer(gradient, where):
    """The gradient itself, or room of its own; where the gradient is narrower there is no choice."""
    return gradient if where == "gradient" else torch.empty(gradient.numel())


UNDO = [(torch.float32, "gradient"), (torch.float32, "apart"), (torch.float16, "apart"), (torch.bfloat16, "apart")]


@pytest.mark.parametrize(("dtype", "where"), UNDO)
@pytest.mark.parametrize("numel", [1, 255, 256, 2049, 20_000])
def test_a_step_that_saves_the_residual_does_the_same(dtype, where, numel, threads):
    """By every path: without a threshold, with one that holds, and with one that does not."""
    memory, plain, k = Memory(numel), Memory(numel), _k(numel, 0.01)
    for step, scale in enumerate([1.0, 1.0, 1.0, 1e-6, 1e3]):
        gradient = (gaussian(numel, seed=step) * scale).to(dtype)
        before, undo = memory.residual.clone(), _undo_buffer(gradient, where)
        expected = plain.select(gradient, k)
        selection = memory.select(gradient, k, undo=undo)
        assert torch.equal(selection.indices, expected.indices)
        assert same_bits(selection.values, expected.values)
        assert same_bits(memory.residual, plain.residual)
        assert same_bits(undo, before)


@pytest.mark.parametrize(("dtype", "where"), UNDO)
@pytest.mark.parametrize("path", ["loops", "torch operations"])
def test_adding_saves_the_residual_too(dtype, where, path, threads, monkeypatch):
    monkeypatch.setattr(device, "CHUNK", 1000)
    for add in (Memory.accumulate, Memory.accumulate_with_gain_curves):
        before, gradient = heavy_tailed(5003, seed=1), spikes_of_every_kind(5003).to(dtype)
        memory, plain = Memory(5003, residual=before.clone()), Memory(5003, residual=before.clone())
        plain.accumulate(gradient)
        undo = _undo_buffer(gradient, where)
        with torch_operations() if path == "torch operations" else contextlib.nullcontext():
            add(memory, gradient, undo=undo)
        assert same_bits(memory.residual.nan_to_num(7.0), plain.residual.nan_to_num(7.0))
        assert same_bits(undo, before)
        assert memory.has_nonfinite


@pytest.mark.parametrize("path", ["loops", "torch operations"])
def test_a_gradient_that_has_been_added_is_not_added_again(path, threads):
    memory, plain = Memory(5003), Memory(5003)
    with torch_operations() if path == "torch operations" else contextlib.nullcontext():
        for step in range(4):
            gradient = gaussian(5003, seed=step)
            memory.accumulate(gradient)
            memory.accumulate(None)
            selection, expected = memory.select(None, 50), plain.select(gradient, 50)
            assert torch.equal(selection.indices, expected.indices)
            assert same_bits(memory.residual, plain.residual)


def test_room_for_the_residual_must_fit():
    with pytest.raises(ValueError, match="undo has 3 entries, but must have 4"):
        Memory(4).select(torch.zeros(4), 1, undo=torch.zeros(3))
    with pytest.raises(ValueError, match=r"undo must be a contiguous tensor of torch\.float32"):
        Memory(4).accumulate(torch.zeros(4), undo=torch.zeros(4, dtype=torch.float16))
