"""One rank of a collective in which something goes wrong; prints what it saw as a line of JSON.

lost.py STORE RANK NUM_RANKS COLLECTIVE ALGORITHM FATE: after a few successful calls rank 1 dies, stops, resumes
after the others have given it up, dies while rank 3 is busy, or comes just in time and dies later.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

from headway import PeerLost
from headway.collectives import Executor, wire
from headway.collectives.groups import GRACE_S

VICTIM, BUSY = 1, 3
OTHERS = [0, 2, 3]
TIMEOUT_S = 4.0


def call(executor: Executor, collective: str, algorithm: str) -> None:
    tensor = torch.ones(100_000)
    if collective == "all_reduce":
        executor.all_reduce(tensor, algorithm)
    elif collective == "all_gather":
        executor.all_gather(tensor, algorithm)
    elif collective == "broadcast":
        executor.broadcast(tensor, VICTIM, algorithm)
    elif collective == "broadcast and sum":  # the root is one call ahead of the ranks that it waits for
        executor.broadcast(tensor, 0, algorithm)
        executor.all_reduce(tensor, "ring")
    elif collective == "control_round":
        executor.control_round(torch.ones(1, dtype=torch.float64), 1, lambda reports: reports.reports.sum(dim=0))


def mark(store: str, what: str, rank: int) -> None:
    """Let other processes know where this rank is: by a file, which one without torch can see."""
    Path(f"{store}-{what}-{rank}").touch()


def wait_until(store: str, what: str, ranks: list[int]) -> None:
    while not all(Path(f"{store}-{what}-{rank}").exists() for rank in ranks):
        time.sleep(0.01)


def meet_fate(fate: str, store: str) -> None:
    if fate.startswith("dies"):
        wait_until(store, "calls", [0, 2] if fate == "dies while one is busy" else OTHERS)
        os.kill(os.getpid(), signal.SIGKILL)
    elif fate == "stops":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif fate == "resumes":
        stop_until_given_up(store)


def stop_until_given_up(store: str) -> None:
    """Stop this process until a child lets it go on."""
    process = os.getpid()
    if os.fork() == 0:
        wait_until(store, "lost", OTHERS)
        os.kill(process, signal.SIGCONT)
        os._exit(0)
    os.kill(process, signal.SIGSTOP)


def just_in_time(executor: Executor, collective: str, algorithm: str) -> None:
    """Come so late that all others send notices, since torch would not wait any longer, but none gives up."""
    executor._calls.wire.patience_s, wire.GRACE_S = 0.5, 30.0
    while executor.rank == VICTIM and not executor._calls._watch._senders(1) >= set(OTHERS):
        time.sleep(0.01)
    call(executor, collective, algorithm)
    executor._calls.wire.patience_s, wire.GRACE_S = executor.patience_s, GRACE_S


def main(store: str, rank: int, num_ranks: int, collective: str, algorithm: str, fate: str) -> None:
    dist.init_process_group("gloo", store=dist.FileStore(store, num_ranks), rank=rank, world_size=num_ranks)
    executor = Executor(timeout_s=TIMEOUT_S)
    for _ in range(3):
        call(executor, collective, algorithm)
    if fate == "dies after a scare":
        just_in_time(executor, collective, algorithm)
        for _ in range(3):
            call(executor, collective, algorithm)
    dist.barrier()
    if rank == VICTIM:
        meet_fate(fate, store)
    if rank == BUSY and fate == "dies while one is busy":
        wait_until(store, "lost", [0, 2])
    mark(store, "calls", rank)
    saw: dict[str, object] = {"rank": rank}
    start = time.monotonic()
    try:
        for _ in range(100):
            call(executor, collective, algorithm)
    except PeerLost as error:
        saw |= {"lost": error.ranks, "message": str(error), "seconds": time.monotonic() - start}
        mark(store, "lost", rank)
        try:
            call(executor, collective, algorithm)
        except PeerLost as again:
            saw["again"] = again.ranks
    print(json.dumps(saw), flush=True)
    os._exit(0)  # torch may abort when a group that broke is taken down


if __name__ == "__main__":
    store, rank, num_ranks, *rest = sys.argv[1:]
    main(store, int(rank), int(num_ranks), *rest)
