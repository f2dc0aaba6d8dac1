"""Headway in a plain DDP script: two added lines, and one to close. Trains a small network on handwritten digits.

torchrun --nproc-per-node 2 examples/plain_ddp.py
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

import headway  # the first line


def main() -> None:
    """Train, and print the results."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo")
    digits = load_digits()
    images, labels = torch.tensor(digits.data, dtype=torch.float32) / 16, torch.tensor(digits.target)
    data = TensorDataset(images[:1400], labels[:1400])
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=32, sampler=sampler)

    model = DistributedDataParallel(nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10)))
    # The second line. On this fast network, plain headway.attach(model) would choose to send everything.
    handle = headway.attach(model, headway.Fixed(exchange="allgather_topk", ratio=0.05))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)

    for epoch in range(10):
        sampler.set_epoch(epoch)
        for batch, target in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(batch), target)
            loss.backward()
            optimizer.step()

    if dist.get_rank() == 0:
        with torch.no_grad():
            accuracy = (model.module(images[1400:]).argmax(1) == labels[1400:]).float().mean()
        print(f"loss {loss.item():.3f}, accuracy {accuracy:.1%}")
        print(handle.statistics())
    handle.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
