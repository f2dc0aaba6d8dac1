"""What the hosts do in ``benchmarks/estimates.py``: train, and now and then compare the live estimate with the network.

Rank 0 prints a line of JSON for each comparison. The reference is taken with nothing else on the network, right after
the estimate: a message of 4 bytes to and fro between ranks 0 and 1, and a bulk transfer from 0 to 1.
"""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import asdict

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import headway
from headway.lab import Control
from headway.train import cnn

BATCH = 16
NUM_PINGS, NUM_BULKS, BULK_BYTES = 15, 3, 4_000_000


def reference() -> headway.Link | None:
    """Return the link as it is, at rank 0."""
    dist.barrier()
    link = _measure() if dist.get_rank() == 0 else None
    if dist.get_rank() == 1:
        for number in range(NUM_PINGS + NUM_BULKS):
            received = torch.zeros(1 if number < NUM_PINGS else BULK_BYTES // 4)
            dist.recv(received, 0)
            dist.send(torch.zeros(1), 0)
    dist.barrier()
    return link


def _measure() -> headway.Link:
    ping_s = min(_to_and_fro_s(torch.zeros(1)) for _ in range(NUM_PINGS))
    bulk_s = min(_to_and_fro_s(torch.zeros(BULK_BYTES // 4)) for _ in range(NUM_BULKS))
    return headway.Link(latency_s=ping_s / 2, bandwidth_bps=8 * BULK_BYTES / (bulk_s - ping_s))


def _to_and_fro_s(message: torch.Tensor) -> float:
    answer = dist.irecv(torch.zeros(1), 1)
    time.sleep(0.25)  # the other one has posted its receive by now
    start = time.perf_counter()
    dist.send(message, 1)
    answer.wait()
    return time.perf_counter() - start


def main() -> None:
    """Train for as long as there are steps at which to compare."""
    config, check_after = json.loads(sys.argv[1]), json.loads(sys.argv[2])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(cnn())
    handle = headway.attach(model, headway.Fixed(**config))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    control = Control()
    images, labels = torch.randn(BATCH, 1, 28, 28), torch.randint(0, 10, (BATCH,))
    for step in range(1, max(check_after) + 1):
        control.step(step - 1)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
        if step in check_after:
            view = handle.network
            link = reference()
            if link is not None:
                row = {"step": step, "estimate": asdict(view.estimate), "reference": asdict(link)}
                print(json.dumps(row | {"changes": [change.what for change in view.changes]}), flush=True)
    dist.barrier()
    handle.close()
    dist.barrier()
    os._exit(0)


if __name__ == "__main__":
    main()
