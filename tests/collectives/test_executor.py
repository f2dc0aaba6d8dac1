"""Every collective on real ranks: correct, bitwise equal, and repeatable."""

from __future__ import annotations

import hashlib
import json
import threading
import time
from itertools import product
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from headway.collectives import ALGORITHMS, NATIVE, Collective, Executor, build_for
from headway.lab import Lab, LinkSpec, Scenario, possible
from tests import forked

ALL_REDUCE = [*ALGORITHMS[Collective.ALL_REDUCE], NATIVE]
ALL_GATHER = [*ALGORITHMS[Collective.ALL_GATHER], NATIVE]
BROADCAST = [*ALGORITHMS[Collective.BROADCAST], NATIVE]
NUM_RANKS = (1, 2, 3, 4, 5, 8, 9)
SIZES = (0, 1, 5, 1000, 70_001)
TIMEOUT_S = 20


def tensor_of(rank: int, numel: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1000 * rank + numel)
    if dtype == torch.uint8:
        return torch.randint(0, 256, (numel,), generator=generator, dtype=dtype)
    return torch.randn(numel, generator=generator).to(dtype)


def bits(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes()


def check_all_reduce(dtype: torch.dtype, sizes: tuple[int, ...], tolerance: float) -> dict[tuple, str]:
    """Compare every sum with its parts; return hashes of the sums."""
    hashes = {}
    with Executor(timeout_s=TIMEOUT_S) as executor:
        ranks = range(executor.num_ranks)
        for numel in sizes:
            parts = torch.stack([tensor_of(rank + 10 * r, numel, dtype) for r in range(3) for rank in ranks])
            parts = parts.view(3, executor.num_ranks, numel)
            for algorithm, repeat in product(ALL_REDUCE, range(3)):
                found = executor.all_reduce(parts[repeat, executor.rank].clone(), algorithm)
                limits = {"rtol": tolerance, "atol": tolerance * executor.num_ranks}
                torch.testing.assert_close(found.double(), parts[repeat].double().sum(0), **limits, msg=algorithm)
                hashes[algorithm, numel, repeat] = hashlib.sha256(bits(found)).hexdigest()
    return hashes


@pytest.mark.parametrize("num_ranks", NUM_RANKS)
def test_all_reduce_is_the_sum_on_all_ranks_to_the_bit(pool, num_ranks):
    hashes = pool.run(check_all_reduce, torch.float32, SIZES, 1e-6, num_ranks=num_ranks)
    assert len(hashes[0]) == len(ALL_REDUCE) * len(SIZES) * 3
    assert hashes == [hashes[0]] * num_ranks


@pytest.mark.parametrize("num_ranks", [2, 3, 8])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float16, 4e-3), (torch.bfloat16, 3e-2)])
def test_half_precision_sums_are_equal_to_the_bit_too(pool, dtype, tolerance, num_ranks):
    hashes = pool.run(check_all_reduce, dtype, (5, 1001), tolerance, num_ranks=num_ranks)
    assert hashes == [hashes[0]] * num_ranks


def check_all_gather() -> int:
    """Compare everything gathered with all messages; return how often."""
    num_checks = 0
    with Executor(timeout_s=TIMEOUT_S) as executor:
        for numel, dtype in product(SIZES, (torch.uint8, torch.float32)):
            messages = torch.stack([tensor_of(rank, numel, dtype) for rank in range(executor.num_ranks)])
            for algorithm, _repeat in product(ALL_GATHER, range(3)):
                assert torch.equal(executor.all_gather(messages[executor.rank], algorithm), messages), algorithm
                num_checks += 1
    return num_checks


@pytest.mark.parametrize("num_ranks", NUM_RANKS)
def test_all_gather_returns_every_message_in_order_of_rank(pool, num_ranks):
    assert pool.run(check_all_gather, num_ranks=num_ranks) == [6 * len(SIZES) * len(ALL_GATHER)] * num_ranks


def check_broadcast() -> int:
    """Compare everything received with the tensor of the root; return how often."""
    num_checks = 0
    with Executor(timeout_s=TIMEOUT_S) as executor:
        for numel, root in product((0, 1, 5, 1_000_003), (0, 1, 2, 0)):
            own, sent = (tensor_of(rank, numel, torch.uint8) for rank in (executor.rank, root % executor.num_ranks))
            for algorithm in BROADCAST:
                found = executor.broadcast(own.clone(), root % executor.num_ranks, algorithm)
                assert torch.equal(found, sent), (algorithm, root)
                num_checks += 1
    return num_checks


@pytest.mark.parametrize("num_ranks", NUM_RANKS)
def test_broadcast_gives_all_ranks_the_tensor_of_the_root(pool, num_ranks):
    assert pool.run(check_broadcast, num_ranks=num_ranks) == [16 * len(BROADCAST)] * num_ranks


def exchange_with_neighbours(graph: list[list[int]]) -> dict[int, torch.Tensor]:
    with Executor(timeout_s=TIMEOUT_S) as executor:
        for _ in range(3):
            messages = executor.neighbour_exchange(tensor_of(executor.rank, 1001, torch.uint8), graph)
        return messages


@pytest.mark.parametrize(
    "graph", [[[]], [[1], [0]], [[1, 2], [0], [0]], [[1, 4], [0, 2], [1, 3], [2, 4], [3, 0]], [[1], [0], []]]
)
def test_neighbours_get_only_each_others_messages(pool, graph):
    for rank, messages in enumerate(pool.run(exchange_with_neighbours, graph, num_ranks=len(graph))):
        assert sorted(messages) == sorted(graph[rank])
        for peer, message in messages.items():
            assert torch.equal(message, tensor_of(peer, 1001, torch.uint8))


def reduce_nonfinite() -> list[torch.Tensor]:
    with Executor(timeout_s=TIMEOUT_S) as executor:
        tensor = tensor_of(executor.rank, 64)
        payload = 0x7FC00000 + executor.rank  # NaNs that tell where they come from
        tensor[3] = torch.tensor(payload, dtype=torch.int32).view(torch.float32)
        tensor[4] = torch.inf if executor.rank == 0 else -torch.inf
        tensor[5 + executor.rank] = torch.inf
        return [executor.all_reduce(tensor.clone(), algorithm) for algorithm in ALGORITHMS[Collective.ALL_REDUCE]]


@pytest.mark.parametrize("num_ranks", [2, 5])
def test_nan_and_inf_come_through_and_are_equal_to_the_bit(pool, num_ranks):
    results = pool.run(reduce_nonfinite, num_ranks=num_ranks)
    for of_ranks in zip(*results, strict=True):
        assert of_ranks[0][3].isnan()
        assert of_ranks[0][4].isnan()
        assert of_ranks[0][5 : 5 + num_ranks].isinf().all()
        assert len({bits(tensor) for tensor in of_ranks}) == 1


def hurry_and_dawdle(algorithm: str) -> list[float]:
    """Calls without a pause between them, with a different rank late each time."""
    with Executor(timeout_s=TIMEOUT_S) as executor:
        sums = []
        for call in range(24):
            if call % executor.num_ranks == executor.rank:
                time.sleep(0.01)
            numel = (10, 10, 500)[call % 3]
            sums.append(executor.all_reduce(torch.full((numel,), float(call + executor.rank)), algorithm)[-1].item())
            sums.append(executor.broadcast(torch.full((numel,), float(executor.rank)), call % 3, "tree")[-1].item())
        return sums


@pytest.mark.parametrize("algorithm", ALGORITHMS[Collective.ALL_REDUCE])
def test_ranks_that_run_ahead_do_not_disturb_others(pool, algorithm):
    expected = [value for call in range(24) for value in (3.0 * call + 3, float(call % 3))]
    assert pool.run(hurry_and_dawdle, algorithm, num_ranks=3) == [expected] * 3


def two_at_once() -> list[float]:
    executors = [Executor(timeout_s=TIMEOUT_S) for _ in range(2)]
    sums: list[list[float]] = [[], []]

    def work(which: int) -> None:
        for call in range(30):
            tensor = torch.full((100,), float(which * 1000 + call))
            sums[which].append(executors[which].all_reduce(tensor, "ring")[0].item())

    threads = [threading.Thread(target=work, args=(which,)) for which in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(TIMEOUT_S)
    for executor in executors:
        executor.close()
    return sums


def test_concurrent_collectives_do_not_mix(pool):
    expected = [[3.0 * (which * 1000 + call) for call in range(30)] for which in range(2)]
    assert pool.run(two_at_once, num_ranks=3) == [expected] * 3


def many_kinds(scratch_bytes: int) -> list[int]:
    """Make more kinds of calls than fit in memory, repeatedly; return the memory in use after each."""
    with Executor(timeout_s=TIMEOUT_S, scratch_bytes=scratch_bytes) as executor:
        kept = []
        for call in range(90):
            numel = 1000 * (1 + call // 2 % 7)
            result = executor.all_reduce(torch.ones(numel), ("ring", "tree", "star")[call // 3 % 3])
            assert torch.equal(result, torch.full((numel,), float(executor.num_ranks)))
            kept.append(executor._lanes.num_bytes)
        executor.close()
        assert executor._lanes.num_bytes == 0
        return kept


@pytest.mark.parametrize("scratch_bytes", [0, 100_000, 300_000])
def test_memory_for_buffers_is_bounded(pool, scratch_bytes):
    """Ranks need different amounts, the server of a star most: they must still evict the same lanes."""
    for kept in pool.run(many_kinds, scratch_bytes, num_ranks=4):
        assert max(kept) <= scratch_bytes <= 2 * max(kept)


def one_after_the_other() -> list[float]:
    sums = []
    for _ in range(4):
        with Executor(timeout_s=TIMEOUT_S) as executor:
            sums.append(executor.all_reduce(torch.ones(1000), "ring")[0].item())
            executor.broadcast(torch.ones(100_000), 0, "tree")  # the root is done first, and closes
    return sums


def test_executors_can_follow_each_other(pool):
    assert pool.run(one_after_the_other, num_ranks=3) == [[3.0] * 4] * 3


def with_gradients() -> list[list[float]]:
    with Executor(timeout_s=TIMEOUT_S) as executor:
        return [
            executor.all_reduce(torch.nn.Parameter(torch.ones(3)), algorithm).tolist()
            for algorithm in (*ALL_REDUCE, *ALL_REDUCE)
        ] + [executor.broadcast(torch.nn.Parameter(torch.ones(3)), 1, algorithm).tolist() for algorithm in BROADCAST]


def test_parameters_that_require_gradients_can_be_sent(pool):
    for results in pool.run(with_gradients, num_ranks=2):
        assert results == [[2.0] * 3] * (2 * len(ALL_REDUCE)) + [[1.0] * 3] * len(BROADCAST)


def in_a_subgroup() -> list[float]:
    group = dist.new_group([1, 3])
    if dist.get_rank() not in (1, 3):
        return []
    with Executor(group, timeout_s=TIMEOUT_S) as executor:
        result = executor.all_reduce(torch.full((4,), float(dist.get_rank())), "ring")
        return [executor.rank, executor.num_ranks, *executor.broadcast(result + executor.rank, 1, "tree").tolist()]


def test_a_group_of_some_ranks_has_ranks_of_its_own(pool):
    assert pool.run(in_a_subgroup, num_ranks=4) == [[], [0, 2, 5, 5, 5, 5], [], [1, 2, 5, 5, 5, 5]]


def beside_other_groups() -> list[float]:
    """Ranks 0 and 1 have made another group by themselves: ranks 1 and 3 are in different numbers of groups."""
    if dist.get_rank() in (0, 1):
        dist.new_group([0, 1], use_local_synchronization=True)
    return in_a_subgroup()


def test_a_group_of_some_ranks_works_whatever_other_groups_there_are(pool):
    found = pool.run(beside_other_groups, num_ranks=4, timeout_s=20)
    assert found == [[], [0, 2, 5, 5, 5, 5], [], [1, 2, 5, 5, 5, 5]]


def unusual_layouts() -> list[torch.Tensor]:
    with Executor(timeout_s=TIMEOUT_S) as executor:
        matrix = torch.arange(12.0).view(3, 4).t()
        every_second = torch.arange(10.0)[::2]
        return [
            executor.all_reduce(matrix.clone().t().contiguous().t(), "ring"),
            executor.all_reduce(every_second, "halving_doubling"),
            executor.all_gather(matrix, "bruck"),
            executor.all_gather(matrix, NATIVE),
            executor.broadcast(matrix + executor.rank, 1, "chain"),
            executor.all_reduce(torch.arange(10.0)[::2], NATIVE),
            executor.broadcast((torch.arange(20.0) + executor.rank)[::2], 1, NATIVE),
        ]


def test_any_shape_and_stride_is_accepted(pool):
    matrix = torch.arange(12.0).view(3, 4).t()
    for reduced, strided, gathered, native, sent, summed, received in pool.run(unusual_layouts, num_ranks=2):
        assert torch.equal(reduced, 2 * matrix)
        assert torch.equal(strided, 2 * torch.arange(10.0)[::2])
        assert torch.equal(gathered, torch.stack([matrix, matrix]))
        assert torch.equal(native, gathered)
        assert torch.equal(sent, matrix + 1)
        assert torch.equal(summed, strided)
        assert torch.equal(received, torch.arange(1.0, 21.0)[::2])


def misuse() -> list[str]:
    executor = Executor(timeout_s=TIMEOUT_S)
    messages = []
    for wrong in (
        lambda: Executor(timeout_s=0),
        lambda: Executor(scratch_bytes=-1),
        lambda: executor.all_reduce(torch.ones(3), "rings"),
        lambda: executor.broadcast(torch.ones(3), 5, "tree"),
        lambda: executor.broadcast(torch.ones(3), 5),
        lambda: executor.neighbour_exchange(torch.ones(3), [[]]),
        lambda: executor.all_reduce(torch.ones(3, device="meta"), "ring"),
        lambda: executor.close() or executor.close() or executor.all_reduce(torch.ones(3), "ring"),
    ):
        try:
            wrong()
        except ValueError as error:
            messages.append(str(error))
    return messages


def test_misuse_is_a_value_error_that_says_what_to_do(pool):
    for messages in pool.run(misuse, num_ranks=2):
        assert messages == [
            "timeout_s is 0, but a deadline must lie ahead: give seconds above 0",
            "scratch_bytes is -1, but must be 0 or more",
            "all_reduce has no algorithm 'rings': choose one of halving_doubling, one_shot, recursive_doubling, ring, "
            "star, tree, two_shot",
            "root is 5, but ranks go from 0 to 1",
            "root is 5, but ranks go from 0 to 1",
            "the graph has 1 ranks, but the group has 2",
            "ring moves CPU tensors, not meta: use algorithm='native'",
            "this executor is closed: make a new one",
        ]


def test_without_a_process_group_it_says_what_to_call():
    with pytest.raises(ValueError, match="init_process_group"):
        Executor()


def test_a_sum_over_some_ranks_does_not_need_the_others(pool):
    results = pool.run(reduce_among, num_ranks=5)
    for rank in (0, 2, 3, 4):
        for algorithm, total in results[rank].items():
            assert total == [9.0] * 10, algorithm
        assert results[rank] == results[0]
    assert results[1] == {}


def reduce_among() -> dict[str, list[float]]:
    """Rank 1 does nothing, and no rank waits for it."""
    executor = Executor(timeout_s=TIMEOUT_S)
    if executor.rank == 1:
        return {}
    return {
        algorithm: executor.all_reduce(torch.full((10,), float(executor.rank)), algorithm, among=(0, 2, 3, 4)).tolist()
        for algorithm in ALGORITHMS[Collective.ALL_REDUCE]
    }


@pytest.mark.parametrize(
    ("among", "algorithm", "message"),
    [
        ((0, 1), NATIVE, "torch's own all-reduce is for all ranks"),
        ((1, 0), "ring", "must be 2 of 0 to 2, ascending"),
        ((0, 3), "ring", "must be 2 of 0 to 2, ascending"),
    ],
)
def test_impossible_ranks_are_rejected(pool, among, algorithm, message):
    assert all(message in said for said in pool.run(reduce_wrongly, among, algorithm, num_ranks=3))


def reduce_wrongly(among: tuple[int, ...], algorithm: str) -> str:
    with Executor(timeout_s=TIMEOUT_S) as executor:
        try:
            executor.all_reduce(torch.ones(3), algorithm, among=among)
        except ValueError as error:
            return str(error)
    return "nothing was wrong"


@pytest.mark.lab
@pytest.mark.skipif(possible.missing() is not None, reason=str(possible.missing()))
def test_the_bytes_between_hosts_are_those_of_the_schedules():
    algorithms, numel, num_calls = ["ring", "two_shot", "one_shot"], 250_000, 4
    sums_checked = []
    with Lab(4, Scenario(link=LinkSpec(latency_s=0.005, bandwidth_bps=500e6))) as lab:
        script = Path(__file__).with_name("scripts") / "count.py"
        command = forked.command(script, json.dumps(algorithms), str(numel), str(num_calls))
        result = lab.run(command, output=lambda _rank, line: sums_checked.append(line), timeout_s=60)
    assert result.exit_code == 0, result.tails
    assert sums_checked.count("all sums are right") == 4
    expected = torch.zeros(4, 4)
    for algorithm in algorithms:
        schedule = build_for(Collective.ALL_REDUCE, algorithm, 4, 4 * numel)
        bounds = schedule.bounds(numel)
        for transfer in schedule.transfers:
            num_entries = bounds[transfer.stop] - bounds[transfer.start]
            expected[transfer.src, transfer.dst] += 4 * num_entries * num_calls
    counted = torch.from_numpy(result.counters.num_bytes).float()
    torch.testing.assert_close(counted, expected, rtol=0.05, atol=2e5)
