import importlib
import pkgutil

import torch

from headway import kernels
from tests.kernels.data import gaussian


def _signatures() -> dict[str, int]:
    """Return the number of compiled signatures of every kernel."""
    counts = {}
    for _, name, _ in pkgutil.iter_modules(kernels.__path__):
        module = importlib.import_module(f"headway.kernels.{name}")
        for attribute, value in vars(module).items():
            if hasattr(value, "nopython_signatures"):
                counts[f"{name}.{attribute}"] = len(value.nopython_signatures)
    return counts


def test_nothing_is_left_to_compile_for_the_first_step():
    kernels.warm_up()
    before = _signatures()
    numel, k = 30_000, 300
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        memory = kernels.Memory(numel)
        for value_format in kernels.VALUE_FORMATS:
            for step in range(3):
                selection = memory.select(gaussian(numel, seed=step).to(dtype), k, value_format=value_format)
                memory.accumulate(gaussian(numel).to(dtype))
                message = torch.empty(kernels.index_bytes(numel, k), dtype=torch.uint8)
                kernels.encode_indices(selection.indices, numel, out=message)
                indices = kernels.decode_indices(message, numel, k)
                kernels.decode_values(selection.payload, k, value_format, out=selection.values)
                kernels.scatter_add(torch.zeros(numel), indices, selection.values)
                kernels.add_message(torch.cat([message, selection.payload]), k, value_format, out=torch.zeros(numel))
                memory.take(indices, value_format=value_format)
        memory.accumulate_with_gain_curves(gaussian(numel).to(dtype))
        moving = kernels.Memory(numel, velocity=kernels.Velocity.zeros(numel, kernels.Momentum(0.9)))
        for step in range(2):
            moving.select(gaussian(numel, seed=step).to(dtype), k, undo=torch.empty(numel))
        kernels.gain_curve(gaussian(numel).to(dtype))
        memory.select(torch.full((numel,), torch.nan).to(dtype), k)
    for bits in (8, 4, 2, 1):
        for step in (None, 0.1):
            message = torch.empty(kernels.quantized_bytes(numel, bits, step=step), dtype=torch.uint8)
            kernels.quantize(gaussian(numel), bits, kernels.noise_key(1, 2, 3), step=step, out=message)
            kernels.dequantize(message, bits, step=step, out=torch.empty(numel))
    assert _signatures() == before
