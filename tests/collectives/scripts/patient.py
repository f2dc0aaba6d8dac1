"""One rank that adds up once, and prints how that went, as a line of JSON: patient.py ALGORITHM NUMEL TIMEOUT_S FATE.

FATE "cut": the scenario cuts a host off when the second step begins, and ranks go on adding up.
"""

from __future__ import annotations

import json
import os
import sys
import time

import torch
import torch.distributed as dist

from headway import PeerLost
from headway.collectives import Executor
from headway.lab import Control

algorithm, numel, timeout_s, fate = sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), sys.argv[4]
dist.init_process_group("gloo")
executor = Executor(timeout_s=timeout_s)
saw: dict[str, object] = {"rank": executor.rank}
control = Control()
start = time.monotonic()
try:
    for number in range(1000 if fate == "cut" else 1):
        saw["sum"] = executor.all_reduce(torch.ones(numel), algorithm)[-1].item()
        if fate == "cut" and number == 0:
            control.step(1)  # by rank 0; the others may still be in the first call
except PeerLost as error:
    saw |= {"lost": error.ranks, "message": str(error)}
saw["seconds"] = time.monotonic() - start
print(json.dumps(saw), flush=True)
if fate != "cut":
    dist.barrier()
os._exit(0)  # torch may abort while it takes down its groups
