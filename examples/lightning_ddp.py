"""Headway in PyTorch Lightning: a strategy, and a callback that logs. Trains a small network on handwritten digits.

torchrun --nproc-per-node 2 examples/lightning_ddp.py

Without torchrun, Lightning starts the second worker itself. Logs and checkpoints go to examples_output/lightning.
"""

from __future__ import annotations

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.loggers import CSVLogger
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import headway
from headway.integrations.lightning import HeadwayLogging, HeadwayStrategy

FOLDER = "examples_output/lightning"


class Digits(LightningModule):
    """A network for images of 8 by 8 pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))

    def training_step(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        """Return the loss."""
        loss = nn.functional.cross_entropy(self.layers(batch[0]), batch[1])
        self.log("loss", loss)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return plain SGD."""
        return torch.optim.SGD(self.parameters(), lr=0.2)


def main() -> None:
    """Train, and print the results."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    digits = load_digits()
    images, labels = torch.tensor(digits.data, dtype=torch.float32) / 16, torch.tensor(digits.target)
    loader = DataLoader(TensorDataset(images[:1400], labels[:1400]), batch_size=32, shuffle=True)

    strategy = HeadwayStrategy(headway.Fixed(exchange="star_topk", ratio=0.05))
    trainer = Trainer(
        accelerator="cpu",
        devices=2,
        strategy=strategy,
        callbacks=[HeadwayLogging(every_n_steps=20)],
        logger=CSVLogger(FOLDER),
        max_epochs=10,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    model = Digits()
    trainer.fit(model, loader)

    if trainer.is_global_zero:
        with torch.no_grad():
            accuracy = (model.layers(images[1400:]).argmax(1) == labels[1400:]).float().mean()
        print(f"loss {trainer.callback_metrics['loss']:.3f}, accuracy {accuracy:.1%}")
        print(strategy.handle.statistics())  # the strategy has closed the handle, which can still be read


if __name__ == "__main__":
    main()
