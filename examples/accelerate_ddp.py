"""Headway with Hugging Face Accelerate: attach after prepare. Trains a small network on handwritten digits.

torchrun --nproc-per-node 2 examples/accelerate_ddp.py

The state, with residuals, goes to examples_output/accelerate.
"""

from __future__ import annotations

import torch
from accelerate import Accelerator
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import headway
from headway.integrations.accelerate import attach, register_for_checkpointing

FOLDER = "examples_output/accelerate"


def main() -> None:
    """Train, save, and print the results."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    accelerator = Accelerator(cpu=True)
    digits = load_digits()
    images, labels = torch.tensor(digits.data, dtype=torch.float32) / 16, torch.tensor(digits.target)
    loader = DataLoader(TensorDataset(images[:1400], labels[:1400]), batch_size=32, shuffle=True)
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)

    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    handle = attach(model, headway.Fixed(exchange="allgather_topk", ratio=0.05))
    register_for_checkpointing(accelerator, handle)

    for _ in range(10):
        for batch, target in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(batch), target)
            accelerator.backward(loss)
            optimizer.step()

    accelerator.save_state(FOLDER)  # a later run continues with accelerator.load_state(FOLDER)
    with torch.no_grad():
        accuracy = (accelerator.unwrap_model(model)(images[1400:]).argmax(1) == labels[1400:]).float().mean()
    accelerator.print(f"loss {loss.item():.3f}, accuracy {accuracy:.1%}")
    accelerator.print(handle.statistics())
    handle.close()
    accelerator.end_training()


if __name__ == "__main__":
    main()
