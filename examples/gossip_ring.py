"""Gossip instead of DDP: each worker mixes its model with its neighbours' on a ring. Learns handwritten digits.

torchrun --nproc-per-node 4 examples/gossip_ring.py
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
    optimizer = headway.gossip.wrap(model, optimizer, algorithm="dcd", topology="ring")

    for epoch in range(10):
        sampler.set_epoch(epoch)
        for batch, target in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(batch), target)
            loss.backward()
            optimizer.step()

    distance = optimizer.consensus_distance()
    optimizer.average_()  # until now every worker has its own model
    if dist.get_rank() == 0:
        with torch.no_grad():
            accuracy = (model(images[1400:]).argmax(1) == labels[1400:]).float().mean()
        print(f"loss {loss.item():.3f}, accuracy {accuracy:.1%}, models were {distance:.2g} apart")
        statistics = optimizer.statistics()
        saved = 1 - statistics.wire_bytes / statistics.dense_bytes
        print(f"{statistics.wire_bytes:,} of {statistics.dense_bytes:,} bytes sent, {saved:.1%} saved")
    optimizer.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
