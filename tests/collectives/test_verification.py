"""Schedules proved correct for every N up to 64 without a socket, and wrong ones rejected."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch.distributed as dist

from headway.collectives import (
    ALGORITHMS,
    Collective,
    Schedule,
    ScheduleError,
    Transfer,
    build,
    verify,
)
from headway.collectives.program import Program, Send, Settle, Take, lower

EVERY = [(collective, name) for collective, known in ALGORITHMS.items() for name in known]
NUM_RANKS = range(1, 65)


def roots(collective: Collective, num_ranks: int) -> list[int]:
    """Return 0 and, where that is cheap, another one: of many ranks another root is only another numbering."""
    return sorted({0, num_ranks // 2}) if collective is Collective.BROADCAST and num_ranks <= 20 else [0]


def verify_share(collective: Collective, name: str) -> list[int]:
    """Verify every second size, on one of two processes; return which."""
    sizes = NUM_RANKS[dist.get_rank() :: dist.get_world_size()]
    for num_ranks in sizes:
        for root in roots(collective, num_ranks):
            verify(build(collective, name, num_ranks, root=root))
    return list(sizes)


@pytest.mark.parametrize(("collective", "name"), EVERY)
def test_every_algorithm_is_right_for_every_number_of_ranks(pool, collective, name):
    shares = pool.run(verify_share, collective, name, num_ranks=2, timeout_s=110)
    assert sorted(size for share in shares for size in share) == list(range(1, 65))


@pytest.mark.parametrize("num_ranks", [2, 5, 8])
def test_a_broadcast_is_right_from_every_root(num_ranks):
    for name in ALGORITHMS[Collective.BROADCAST]:
        for root in range(num_ranks):
            verify(build(Collective.BROADCAST, name, num_ranks, root=root))


@pytest.mark.parametrize("num_chunks", [1, 2, 7, 64])
def test_a_chain_is_right_for_every_number_of_chunks(num_chunks):
    for num_ranks in (1, 2, 3, 8):
        verify(build(Collective.BROADCAST, "chain", num_ranks, num_chunks=num_chunks))


def all_reduce_of(*rounds: list[Transfer], num_ranks: int = 2, num_chunks: int = 1) -> Schedule:
    return Schedule(Collective.ALL_REDUCE, "test", num_ranks, num_chunks, tuple(map(tuple, rounds)))


def culprit(schedule: Schedule, programs: list[Program] | None = None) -> tuple[int, int | None, int, str]:
    with pytest.raises(ScheduleError) as raised:
        verify(schedule, programs)
    return raised.value.rank, raised.value.round, raised.value.chunk, str(raised.value)


def test_what_is_missing_at_the_end_is_found():
    schedule = all_reduce_of([Transfer(0, 1, 0, 1, reduce=True)])
    rank, number, chunk, text = culprit(schedule)
    assert (rank, number, chunk) == (0, None, 0)
    assert text == "rank 0, at the end, chunk 0: lacks the contribution of rank 1"


def test_a_rank_that_sends_what_it_does_not_have_yet_is_found():
    late = Transfer(0, 1, 0, 2), Transfer(1, 2, 0, 2)
    schedule = Schedule(Collective.BROADCAST, "test", 3, 2, (late,))
    assert culprit(schedule)[:3] == (1, 0, 0)
    verify(replace(schedule, rounds=((late[0],), (late[1],))))


def test_a_contribution_that_is_added_twice_is_found():
    swap = [Transfer(0, 1, 0, 1, reduce=True), Transfer(1, 0, 0, 1, reduce=True)]
    rank, number, _, text = culprit(all_reduce_of(swap, swap))
    assert (rank, number) == (0, 1)
    assert "ranks 0, 1 is added twice" in text


def test_a_copy_that_loses_a_contribution_is_found():
    rank, number, _, text = culprit(all_reduce_of([Transfer(0, 1, 0, 1)]))
    assert (rank, number) == (1, 0)
    assert "loses the contribution of rank 1" in text


def test_adding_to_nothing_is_found():
    schedule = Schedule(Collective.BROADCAST, "test", 2, 1, ((Transfer(0, 1, 0, 1, reduce=True),),))
    assert "adds to what it does not have" in culprit(schedule)[3]


def swaps(*pairs: tuple[int, int]) -> list[Transfer]:
    return [Transfer(src, dst, 0, 1, reduce=True) for a, b in pairs for src, dst in ((a, b), (b, a))]


def test_sums_in_different_orders_are_found():
    verify(all_reduce_of(swaps((0, 1), (2, 3)), swaps((0, 2), (1, 3)), num_ranks=4))
    # Here ranks 0 and 1 add (0 + 3) + (1 + 2), ranks 2 and 3 add (1 + 2) + (0 + 3).
    rank, number, _, text = culprit(all_reduce_of(swaps((0, 3), (1, 2)), swaps((0, 1), (2, 3)), num_ranks=4))
    assert (rank, number) == (2, None)
    assert "in a different order" in text


@pytest.mark.parametrize(
    ("transfer", "message"),
    [
        (Transfer(0, 2, 0, 1), "ranks go from 0 to 1"),
        (Transfer(-1, 0, 0, 1), "ranks go from 0 to 1"),
        (Transfer(1, 1, 0, 1), "to itself"),
        (Transfer(0, 1, 0, 2), "chunks go from 0 to 0"),
        (Transfer(0, 1, 1, 1), "chunks go from 0 to 0"),
    ],
)
def test_impossible_transfers_are_found(transfer, message):
    assert message in culprit(all_reduce_of([transfer]))[3]


def test_a_chunk_written_twice_in_one_round_is_found():
    schedule = all_reduce_of([Transfer(0, 2, 0, 1), Transfer(1, 2, 0, 1)], num_ranks=3)
    rank, number, chunk, text = culprit(schedule)
    assert (rank, number, chunk) == (2, 0, 0)
    assert "in the same round rank 0 copies chunk 0 to rank 2" in text
    halves = [Transfer(0, 2, 0, 2, reduce=True), Transfer(1, 2, 1, 2, reduce=True)]
    assert culprit(all_reduce_of(halves, num_ranks=3, num_chunks=2))[:3] == (2, 0, 1)


def test_ranks_that_wait_for_each_other_are_found():
    schedule = build(Collective.ALL_REDUCE, "recursive_doubling", 2)
    waits_first = []
    for rank in range(2):
        program = lower(schedule, rank)
        waits_first.append(
            replace(
                program, steps=tuple(sorted(program.steps, key=lambda step: (Take, Send, Settle).index(type(step))))
            )
        )
    rank, number, chunk, text = culprit(schedule, waits_first)
    assert (rank, number, chunk) == (0, 0, 0)
    assert "deadlock" in text
    assert "rank 1 never gets to send it" in text


def test_a_send_without_a_receive_is_found():
    schedule = build(Collective.BROADCAST, "tree", 2)
    unreceived = [lower(schedule, 0), Program(1, (), ())]
    assert "no rank receives it" in culprit(schedule, unreceived)[3]


def test_a_program_that_forgets_to_take_is_found():
    schedule = build(Collective.ALL_REDUCE, "ring", 3)
    programs = [lower(schedule, rank) for rank in range(3)]
    forgetful = [step for step in programs[1].steps if not isinstance(step, Take)]
    programs[1] = replace(programs[1], steps=tuple(forgetful))
    rank, number, _, text = culprit(schedule, programs)
    assert (rank, number) == (2, 2)  # the first that notices what rank 1 has passed on
    assert "changes while it is still being sent" in text


def without_settling(program: Program) -> Program:
    return replace(program, steps=tuple(step for step in program.steps if not isinstance(step, Settle)))


def test_a_sum_under_a_send_is_found():
    schedule = build(Collective.ALL_REDUCE, "recursive_doubling", 2)
    rank, number, chunk, text = culprit(schedule, [without_settling(lower(schedule, rank)) for rank in range(2)])
    assert (rank, number, chunk) == (1, 0, 0)
    assert "changes while it is still being sent (rank 1 adds chunk 0 to rank 0)" in text


def test_a_send_that_outlives_the_program_is_found():
    schedule = build(Collective.BROADCAST, "tree", 2)
    assert (
        "still being sent when the program ends"
        in culprit(schedule, [without_settling(lower(schedule, 0)), lower(schedule, 1)])[3]
    )


def test_a_copy_that_may_land_under_a_send_is_found():
    """Rank 0 sends its part to rank 1; a copy of the sum from rank 2 might arrive before rank 1 has received it."""
    rounds = (
        (Transfer(0, 2, 0, 1, reduce=True),),
        (Transfer(0, 1, 0, 1),),
        (Transfer(2, 0, 0, 1),),
    )
    schedule = Schedule(Collective.NEIGHBOUR_EXCHANGE, "test", 3, 1, rounds, neighbours=((), (), ()))
    with pytest.raises(ScheduleError):
        verify(schedule)


def test_every_transfer_is_needed():
    """Without any one transfer, verification fails."""
    for collective, name in EVERY:
        schedule = build(collective, name, 6)
        for number, transfers in enumerate(schedule.rounds):
            for gap in range(len(transfers)):
                fewer = transfers[:gap] + transfers[gap + 1 :]
                broken = replace(schedule, rounds=(*schedule.rounds[:number], fewer, *schedule.rounds[number + 1 :]))
                with pytest.raises(ScheduleError):
                    verify(broken)


def test_no_chunk_is_reduced_by_the_wrong_kind():
    """With any copy turned into a sum or back, verification fails."""
    for collective, name in EVERY:
        schedule = build(collective, name, 5)
        for number, transfers in enumerate(schedule.rounds):
            for place, transfer in enumerate(transfers):
                turned = (*transfers[:place], replace(transfer, reduce=not transfer.reduce), *transfers[place + 1 :])
                broken = replace(schedule, rounds=(*schedule.rounds[:number], turned, *schedule.rounds[number + 1 :]))
                with pytest.raises(ScheduleError):
                    verify(broken)
