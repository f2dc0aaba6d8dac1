import numpy as np
import pytest

from headway.kernels import _lanes
from headway.kernels._lanes import ROOM
from headway.kernels._lanes import SCAN_BLOCK as BLOCK
from tests.kernels.data import DISTRIBUTIONS

SENTINEL = 77


@pytest.mark.skipif(not _lanes.HAS_COMPRESS, reason="this CPU has no AVX-512: the scalar loop is the only one")
@pytest.mark.parametrize("clear", [False, True], ids=["collect", "extract"])
@pytest.mark.parametrize("name", DISTRIBUTIONS)
@pytest.mark.parametrize("threshold", [0.0, 1e-38, 0.5, 2.0, np.inf])
def test_vector_and_scalar_loops_agree(clear, name, threshold):
    key = np.maximum(np.float32(threshold).view(np.uint32), np.uint32(1))
    results = []
    for loop in (_lanes.collect_block, _lanes.collect_block_scalar):
        source = DISTRIBUTIONS[name](4 * BLOCK).numpy().copy()
        indices = np.full(4 * BLOCK + ROOM + 8, SENTINEL, np.int32)
        values = np.zeros(indices.size, np.float32)
        count = 0
        for at in range(0, source.size, BLOCK):
            count = loop(source, at, key, clear, indices, values, count)
        assert (indices[4 * BLOCK + ROOM :] == SENTINEL).all()
        results.append((source.view(np.uint32), indices[:count], values[:count].view(np.uint32)))
    for ours, theirs in zip(*results, strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.skipif(not _lanes.HAS_COMPRESS, reason="this CPU has no AVX-512: the scalar loop is the only one")
@pytest.mark.parametrize(("start", "stop"), [(0, 0), (0, 15), (3, 100), (0, 256)])
def test_compaction_in_place(start, stop):
    results = []
    for loop in (_lanes.compact, _lanes.compact_scalar):
        values = DISTRIBUTIONS["all kinds"](256 + 16).numpy().copy()
        labels = np.arange(values.size, dtype=np.int32) * 3
        count = loop(values, labels, start, stop, np.float32(0.7).view(np.uint32), labels, values, start // 2)
        results.append((count, labels[:count].copy(), values[:count].view(np.uint32).copy()))
    assert results[0][0] == results[1][0]
    np.testing.assert_array_equal(results[0][1], results[1][1])
    np.testing.assert_array_equal(results[0][2], results[1][2])
