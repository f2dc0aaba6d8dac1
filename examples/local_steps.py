"""Local steps instead of DDP: workers step by themselves, and exchange every eighth step. Learns handwritten digits.

torchrun --nproc-per-node 4 examples/local_steps.py
headway emulate -n 4 --latency 50ms --bandwidth 20mbps -- python examples/local_steps.py
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

import headway


def main() -> None:
    """Train, average, and print the result."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo")
    digits = load_digits()
    images, labels = torch.tensor(digits.data, dtype=torch.float32) / 16, torch.tensor(digits.target)
    data = TensorDataset(images[:1400], labels[:1400])
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=32, sampler=sampler)

    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))  # the bare model, no DDP
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    # On a slow network, headway.local.wrap(model, optimizer) chooses all of this while training runs.
    config = headway.Fixed(exchange="allgather_topk", ratio=0.1)
    optimizer = headway.local.wrap(model, optimizer, steps=8, config=config, overlap=False)

    for epoch in range(10):
        sampler.set_epoch(epoch)
        for batch, target in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(batch), target)
            loss.backward()
            optimizer.step()

    optimizer.average_()  # until now every worker has its own model
    if dist.get_rank() == 0:
        with torch.no_grad():
            accuracy = (model(images[1400:]).argmax(1) == labels[1400:]).float().mean()
        print(f"loss {loss.item():.3f}, accuracy {accuracy:.1%}")
        print(f"{len(optimizer.records)} exchanges in {optimizer.num_steps} steps")
        print(optimizer.statistics())
    optimizer.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
