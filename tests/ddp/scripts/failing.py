"""One rank of a training in which something breaks; prints what it saw as a line of JSON.

failing.py STORE RANK NUM_RANKS TIMEOUT_S EXCHANGE FUSION FATE: in step 3 rank 1 dies, or fails in its engine.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import headway
from headway.exchange import Averager

VICTIM, FATAL_STEP = 1, 3


def fail(self: Averager, bucket: object) -> None:
    raise ZeroDivisionError("made to fail")


def main(store: str, rank: int, num_ranks: int, timeout_s: float, exchange: str, fusion: str, fate: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.FileStore(store, num_ranks), rank=rank, world_size=num_ranks)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(10, 100), nn.ReLU(), nn.Linear(100, 100), nn.ReLU(), nn.Linear(100, 1))
    ddp = DistributedDataParallel(model, bucket_cap_mb=0.02)
    link = headway.Link(latency_s=0.001, bandwidth_bps=1e8)
    handle = headway.attach(ddp, headway.Fixed(exchange=exchange, fusion=fusion, link=link, timeout_s=timeout_s))
    saw: dict[str, object] = {"rank": rank}
    start = time.monotonic()
    try:
        for step in range(8):
            if step == FATAL_STEP and rank == VICTIM:
                if fate == "dies":
                    os.kill(os.getpid(), signal.SIGKILL)
                Averager.take = fail  # type: ignore[method-assign]
            if step == FATAL_STEP:
                start = time.monotonic()
            ddp(torch.randn(4, 10)).square().mean().backward()
    except (headway.HeadwayError, ZeroDivisionError) as error:
        saw |= {"error": type(error).__name__, "message": str(error), "step": step}
        saw |= {"lost": getattr(error, "ranks", None), "seconds": time.monotonic() - start}
        handle.close()  # must not hang, nor raise
    print(json.dumps(saw), flush=True)
    os._exit(0)  # torch may abort when a group that broke is taken down


if __name__ == "__main__":
    store, rank, num_ranks, timeout_s, *rest = sys.argv[1:]
    main(store, int(rank), int(num_ranks), float(timeout_s), *rest)
