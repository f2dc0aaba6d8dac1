"""Local steps that go on without lost ranks: each rank does what its arguments say, and prints what it saw as JSON.

losing.py OPTIONS, with OPTIONS as JSON: steps, wrap and config (options of headway.local.wrap and headway.Fixed), die
(the steps at which ranks kill themselves, by rank), mark (a file that tells that ranks have gone on without one: then
they train until one comes back, and some steps more).
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import time
from pathlib import Path

import torch
from torch import nn

import headway

NUM_LATER, MOST_STEPS = 12, 3000


def main() -> None:
    options = json.loads(sys.argv[1])
    said: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())
    logging.getLogger("headway").addHandler(handler)
    torch.set_num_threads(1)
    headway.elastic.init_process_group()
    rank, num_ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.manual_seed(rank)
    model = nn.Sequential(nn.Linear(20, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 1))
    inner = torch.optim.SGD(model.parameters(), lr=0.01)
    config = headway.Fixed(**options.get("config", {"exchange": "allgather_topk", "ratio": 0.2}), timeout_s=10)
    given = {**options["wrap"], "config": config, "on_loss": "continue"}
    if given.pop("nesterov", False):
        given["outer"] = headway.local.Nesterov(lr=0.7, momentum=0.5)
    optimizer = headway.local.wrap(model, inner, **given)
    joined_at = optimizer.num_steps
    target = torch.randn(20, 1, generator=torch.Generator().manual_seed(0))
    generator = torch.Generator().manual_seed(100 + rank)
    losses = []
    mark = Path(options["mark"]) if "mark" in options else None
    last = MOST_STEPS if mark is not None else options["steps"]
    if joined_at > 0:
        last = joined_at + NUM_LATER
    while optimizer.num_steps < last:
        if joined_at == 0 and options["die"].get(str(rank)) == optimizer.num_steps:
            os.kill(os.getpid(), signal.SIGKILL)
        inputs = torch.randn(32, 20, generator=generator)
        loss = (model(inputs) - inputs @ target).square().mean()
        optimizer.zero_grad()
        loss.backward()
        before = optimizer.num_ranks
        optimizer.step()
        losses.append(loss.item())
        if optimizer.num_ranks > before:
            last = optimizer.num_steps + NUM_LATER
        elif optimizer.num_ranks < num_ranks and mark is not None:
            mark.touch()
            time.sleep(0.02)
    optimizer.average_()
    tensors = [tensor for tensor in model.state_dict().values() if tensor.is_floating_point()]
    flat = torch.cat([tensor.detach().flatten() for tensor in tensors])
    found = {
        "joined_at": joined_at,
        "first": losses[0],
        "last": sum(losses[-5:]) / 5,
        "model": flat.tolist(),
        "num_ranks": optimizer.num_ranks,
        "num_steps": optimizer.num_steps,
        "said": said,
    }
    print(json.dumps(found), flush=True)
    optimizer.close()
    os._exit(0)


if __name__ == "__main__":
    main()
