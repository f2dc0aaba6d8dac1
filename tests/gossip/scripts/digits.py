"""Five ranks learn the digits by gossip, one of them dies on the way; prints what this rank saw as JSON.

python digits.py STORE RANK NUM_RANKS TIMEOUT_S
"""

import json
import os
import signal
import sys
import time

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn

import headway
from headway import gossip

STORE, RANK, NUM_RANKS, TIMEOUT_S = sys.argv[1], *map(int, sys.argv[2:4]), float(sys.argv[4])
UNLUCKY, WHEN, NUM_STEPS = 2, 60, 400
NUM_TEST = 450


def data() -> tuple[torch.Tensor, torch.Tensor]:
    digits = load_digits()
    order = torch.randperm(len(digits.target), generator=torch.Generator().manual_seed(0))
    return torch.tensor(digits.data, dtype=torch.float32)[order] / 16, torch.tensor(digits.target)[order]


torch.set_num_threads(1)
dist.init_process_group("gloo", init_method=f"file://{STORE}", rank=RANK, world_size=NUM_RANKS)
torch.manual_seed(RANK)
model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
optimizer = gossip.wrap(
    model,
    torch.optim.SGD(model.parameters(), lr=0.2),
    timeout_s=TIMEOUT_S,
)
images, labels = data()
generator = torch.Generator().manual_seed(RANK)
saw = {"error": None, "step": 0}
longest_s = 0.0
try:
    for step in range(NUM_STEPS):
        if (RANK, step) == (UNLUCKY, WHEN):
            os.kill(os.getpid(), signal.SIGKILL)
        start = time.monotonic()
        picked = torch.randint(NUM_TEST, len(labels), (16,), generator=generator)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images[picked]), labels[picked]).backward()
        optimizer.step()
        longest_s = max(longest_s, time.monotonic() - start)
        saw["step"] = step + 1
    saw["distance"] = optimizer.consensus_distance()
    optimizer.average_()
    with torch.no_grad():
        right = model(images[:NUM_TEST]).argmax(dim=1) == labels[:NUM_TEST]
    saw["accuracy"] = float(right.float().mean())
    saw["checksum"] = float(sum(parameter.detach().double().sum() for parameter in model.parameters()))
except headway.PeerLost as error:
    saw["error"], saw["lost"], saw["text"] = "PeerLost", list(error.ranks), str(error)
saw["longest_s"] = longest_s
saw["events"] = [str(event) for event in optimizer.events]
saw["neighbours"] = list(optimizer.neighbours)
print(json.dumps(saw), flush=True)
os._exit(0)
