"""Headway in the Hugging Face Trainer: one callback. Trains a small network on handwritten digits.

torchrun --nproc-per-node 2 examples/hf_trainer.py

Checkpoints go to examples_output/hf_trainer.
"""

from __future__ import annotations

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from transformers import Trainer, TrainingArguments

import headway
from headway.integrations.transformers import HeadwayCallback

FOLDER = "examples_output/hf_trainer"


class Digits(nn.Module):
    """A network for images of 8 by 8 pixels, with its loss, as the Trainer expects."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))

    def forward(self, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """Return the loss and the logits."""
        logits = self.layers(images)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def main() -> None:
    """Train, and print the results."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    digits = load_digits()
    images, labels = torch.tensor(digits.data, dtype=torch.float32) / 16, torch.tensor(digits.target)
    samples = [{"images": image, "labels": label} for image, label in zip(images, labels, strict=True)]

    arguments = TrainingArguments(
        output_dir=FOLDER,
        use_cpu=True,
        per_device_train_batch_size=32,
        num_train_epochs=10,
        learning_rate=0.003,
        logging_steps=55,
        report_to="none",
        disable_tqdm=True,
    )
    model = Digits()
    trainer = Trainer(model, arguments, train_dataset=samples[:1400])
    callback = HeadwayCallback(trainer, headway.Fixed(exchange="allgather_topk", ratio=0.05))
    trainer.add_callback(callback)
    result = trainer.train()

    if trainer.is_world_process_zero():
        with torch.no_grad():
            accuracy = (model.layers(images[1400:]).argmax(1) == labels[1400:]).float().mean()
        print(f"loss {result.training_loss:.3f}, accuracy {accuracy:.1%}")
        print(callback.handle.statistics())  # the callback has closed the handle, which can still be read
    trainer.accelerator.end_training()


if __name__ == "__main__":
    main()
