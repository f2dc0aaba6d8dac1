"""One rank of several fits with Lightning; prints what it saw as a line of JSON.

fits.py FOLDER, with the environment of torchrun.
"""

from __future__ import annotations

import json
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.plugins import MixedPrecision
from tests.ranks import refusal
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import headway
from headway.integrations.lightning import HeadwayLogging, HeadwayStrategy

LINK = headway.Link(latency_s=0.001, bandwidth_bps=1e8)
CONFIG = headway.Fixed(exchange="allgather_topk", ratio=0.1, fusion="step", link=LINK, timeout_s=60)
"""Nothing is left to choose by when buckets arrive: runs are compared to the bit."""

SGD = {"momentum": 0.5, "weight_decay": 0.01, "nesterov": True}


class Model(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(20, 50), nn.ReLU(), nn.Linear(50, 5))
        self.register_buffer("seen", torch.zeros(1))
        self.momenta_in_training: set[float] = set()

    def training_step(self, batch):
        self.seen += 1 + self.global_rank
        self.momenta_in_training.add(self.optimizer.param_groups[0]["momentum"])
        return nn.functional.cross_entropy(self.layers(batch[0]), batch[1])

    def validation_step(self, batch):
        self.log("seen", 1.0)

    def configure_optimizers(self):
        self.optimizer = torch.optim.SGD(self.parameters(), lr=0.1, **SGD)
        return self.optimizer


class Failing(Model):
    """Fails in its eighth step, on rank 1 alone."""

    def training_step(self, batch):
        if self.global_step == 7 and self.global_rank == 1:
            raise ZeroDivisionError("made to fail")
        return super().training_step(batch)


def fit(
    num_epochs: int,
    folder: Path,
    *,
    make: Callable[[], Model] = Model,
    resume_from: Path | None = None,
    **options: Any,
) -> tuple[Trainer, Model]:
    """Train with batches that are the same in all epochs, five of them."""
    inputs = torch.randn(40, 20, generator=torch.Generator().manual_seed(0))
    loader = DataLoader(TensorDataset(inputs, inputs[:, :5].argmax(1)), batch_size=4)
    model = make()
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "logger": False, "log_every_n_steps": 1}
    trainer = Trainer(
        accelerator="cpu",
        devices=2,
        strategy=HeadwayStrategy(CONFIG, bucket_cap_mb=0.001),
        max_epochs=num_epochs,
        default_root_dir=folder,
        **{**quiet, "enable_checkpointing": False, **options},
    )
    trainer.fit(model, loader, ckpt_path=None if resume_from is None else str(resume_from))
    return trainer, model


def settings_in(groups: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the settings of the only group that the hook takes over."""
    (group,) = groups
    return {name: group[name] for name in SGD}


def weights_of(model: nn.Module) -> list[float]:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()]).tolist()


def refusals(folder: Path) -> list[str]:
    """Return what is said to wrong options."""
    attempts: list[Callable[[], object]] = [
        lambda: HeadwayStrategy("dense"),
        lambda: HeadwayStrategy(CONFIG, ddp_comm_hook=print),
        lambda: HeadwayLogging(every_n_steps=0),
        lambda: HeadwayLogging().setup(Trainer(accelerator="cpu", devices=1, logger=False), Model(), "fit"),
    ]
    return [refusal(attempt) for attempt in attempts]


def main(folder: Path) -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    keeper = ModelCheckpoint(folder / "kept", save_top_k=1, save_last="link", every_n_epochs=1)
    log = {"logger": CSVLogger(folder / "log"), "callbacks": [HeadwayLogging(every_n_steps=4), keeper]}
    trainer, whole = fit(4, folder, enable_checkpointing=True, **log)
    handle = trainer.strategy.handle
    saw: dict[str, Any] = {"steps": handle.statistics().step, "saved": handle.statistics().saved}
    trainer.validate(whole, DataLoader(TensorDataset(torch.zeros(4, 20), torch.zeros(4))), verbose=False)
    saw["kept"] = sorted(path.name for path in (folder / "kept").iterdir())
    saved = torch.load(folder / "kept" / "last.ckpt", weights_only=True)
    saw["settings saved"] = settings_in(saved["optimizer_states"][0]["param_groups"])
    saw["settings after"] = settings_in(trainer.optimizers[0].param_groups)
    saw["momenta"] = [*whole.momenta_in_training]
    saw["has velocity"] = bool(handle.state_dict()["velocity"].any())

    half, halfway = fit(2, folder)
    saw["buffer"] = halfway.seen.item()
    half.save_checkpoint(folder / "half.ckpt")
    half.save_checkpoint(folder / "weights.ckpt", weights_only=True)
    again, resumed = fit(4, folder, resume_from=folder / "half.ckpt")
    saw["resumed is equal"] = weights_of(resumed) == weights_of(whole)
    saw["resumed steps"] = again.strategy.handle.statistics().step
    longer, _ = fit(5, folder, resume_from=folder / "kept" / "last.ckpt")
    saw["steps from link"] = longer.strategy.handle.statistics().step

    if trainer.is_global_zero:  # the other rank still has its own
        (folder / "half.ckpt.headway-0").unlink()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        _, without = fit(4, folder, resume_from=folder / "half.ckpt")
    saw["warned"] = [str(each.message) for each in caught if "Headway" in str(each.message)]
    saw["without is equal"] = weights_of(without) == weights_of(whole)
    saw["refusals"] = refusals(folder)
    scaler = torch.amp.GradScaler("cpu", init_scale=512.0)
    scaled, clipped = fit(1, folder, plugins=MixedPrecision("16-mixed", "cpu", scaler), gradient_clip_val=1.0)
    saw["loss scale"] = scaled.strategy.handle.state_dict()["loss_scale"]
    saw["momenta with clipping"] = [*clipped.momenta_in_training]

    started_at, failing = time.monotonic(), Failing()
    try:
        fit(2, folder, make=lambda: failing)
    except (ZeroDivisionError, headway.PeerLost) as error:
        saw["failure"] = type(error).__name__
    saw["settings after failure"] = settings_in(failing.optimizer.param_groups)
    saw["failed in time"] = time.monotonic() - started_at < CONFIG.timeout_s / 2
    saw["rank"] = trainer.global_rank
    print("\n" + json.dumps(saw), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
