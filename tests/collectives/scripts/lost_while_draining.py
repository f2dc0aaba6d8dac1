"""One of three ranks, of which rank 1 dies while the others drain a lane; prints what it saw as a line of JSON.

lost_while_draining.py STORE RANK
"""

from __future__ import annotations

import json
import os
import signal
import sys
from unittest import mock

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import _get_process_group_store

from headway import PeerLost
from headway.collectives import Executor
from headway.collectives.lanes import Lane

VICTIM = 1
WITHOUT_IT = [[2], [], [0]]
"""Messages between ranks 0 and 2 only."""

store, rank = sys.argv[1], int(sys.argv[2])
dist.init_process_group("gloo", store=dist.FileStore(store, 3), rank=rank, world_size=3)
executor = Executor(timeout_s=20, scratch_bytes=40_000)
for _ in range(3):
    executor.all_reduce(torch.ones(100), "one_shot")
executor.neighbour_exchange(torch.ones(900), WITHOUT_IT)
dist.barrier()
shared = _get_process_group_store(dist.group.WORLD)
if rank == VICTIM:
    shared.wait(["rank 0 calls", "rank 2 calls"])
    os.kill(os.getpid(), signal.SIGKILL)
shared.set(f"rank {rank} calls", "")
lost: tuple[int, ...] = ()
with mock.patch.object(Lane, "drain", autospec=True, side_effect=Lane.drain) as drain:
    try:
        executor.neighbour_exchange(torch.ones(900), WITHOUT_IT)
    except PeerLost as error:
        lost = error.ranks
print(json.dumps({"evicted": drain.called, "lost": lost}), flush=True)
os._exit(0)  # torch may abort when a group that broke is taken down
