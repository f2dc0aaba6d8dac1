import numba
import numpy as np

from headway.kernels._jit import bfloat_to_float, half_to_float


@numba.njit
def _all_halves(out):
    for bits in range(65536):
        out[bits] = half_to_float(np.uint16(bits))


@numba.njit
def _all_bfloats(out):
    for bits in range(65536):
        out[bits] = bfloat_to_float(np.int16(bits))


def test_every_fp16_widens_exactly():
    out = np.empty(65536, np.float32)
    _all_halves(out)
    np.testing.assert_array_equal(out, np.arange(65536, dtype=np.uint16).view(np.float16).astype(np.float32))


def test_every_bf16_widens_exactly():
    out = np.empty(65536, np.float32)
    _all_bfloats(out)
    np.testing.assert_array_equal(out.view(np.uint32), np.arange(65536, dtype=np.uint32) << 16)
