"""Train up to a control round, and take everything down at once, without closing the handle.

parting.py STORE RANK NUM_RANKS: prints "done" when torch.distributed is gone.
"""

from __future__ import annotations

import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import headway


def main(store: str, rank: int, num_ranks: int) -> None:
    dist.init_process_group("gloo", store=dist.FileStore(store, num_ranks), rank=rank, world_size=num_ranks)
    model = DistributedDataParallel(nn.Linear(10, 10))
    headway.attach(model, headway.Fixed(exchange="star_topk", interval=1))
    for _ in range(6):
        model(torch.randn(2, 10)).sum().backward()
    dist.destroy_process_group()
    print("done", flush=True)
    os._exit(0)  # torch may abort when the interpreter ends


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
