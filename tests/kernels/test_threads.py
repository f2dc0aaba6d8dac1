import os
import signal
import threading
from itertools import pairwise

import pytest
import torch

from headway.kernels import Memory, _threads, select_topk
from tests.kernels.data import gaussian


@pytest.mark.parametrize("numel", [0, 1, 2047, 2048, 100_000, 5_000_001])
def test_chunks_cover_everything_once(numel, threads):
    parts = _threads.chunks(numel)
    assert parts[0].start == 0
    assert parts[-1].stop == numel
    assert all(a.stop == b.start for a, b in pairwise(parts))
    assert all(part.start % _threads.ALIGNMENT == 0 for part in parts)
    assert len(parts) == (1 if threads == 1 or numel <= 4096 else 2)


def test_work_runs_at_the_same_time(threads):
    together = threading.Barrier(threads, timeout=20)
    _threads.run(lambda _number, _part: together.wait(), [slice(0, 1)] * threads)


def test_an_error_in_a_chunk_is_raised(threads):
    def fail(number, _part):
        raise RuntimeError(f"chunk {number}")

    with pytest.raises(RuntimeError, match="chunk 0"):
        _threads.run(fail, [slice(0, 1), slice(1, 2)])


def test_many_threads_may_call_kernels_at_once(threads):
    """As ranks run as threads do, or the engine thread and a data loader."""
    expected = select_topk(gaussian(50_000), 500)
    wrong = []

    def call():
        for _ in range(20):
            if not torch.equal(Memory(50_000).select(gaussian(50_000), 500).indices, expected):
                wrong.append(threading.current_thread().name)

    callers = [threading.Thread(target=call) for _ in range(4)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join(timeout=60)
    assert not wrong
    assert not any(caller.is_alive() for caller in callers)


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_forked_child_starts_its_own_threads(threads):
    expected = select_topk(gaussian(50_000), 500)
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        os._exit(0 if torch.equal(select_topk(gaussian(50_000), 500), expected) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
