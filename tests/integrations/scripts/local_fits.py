"""One rank of several fits with local steps in Lightning; prints what it saw as a line of JSON.

local_fits.py FOLDER, with the environment of torchrun.
"""

from __future__ import annotations

import hashlib
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
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import headway
from headway.integrations.lightning import HeadwayLocalStrategy, HeadwayLogging

LINK = headway.Link(latency_s=0.001, bandwidth_bps=1e8)
CONFIG = headway.Fixed(exchange="allgather_topk", ratio=0.1, link=LINK, timeout_s=60)
OPTIONS = {"steps": 3, "config": CONFIG, "overlap": 2, "residual_decay": 0.9}
"""An epoch of five steps ends in the middle of a round."""

INPUTS = torch.randn(40, 20, generator=torch.Generator().manual_seed(0))


class Model(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(torch.distributed.get_rank() if torch.distributed.is_initialized() else 0)
        self.layers = nn.Sequential(nn.Linear(20, 50), nn.BatchNorm1d(50), nn.ReLU(), nn.Linear(50, 5))
        self.samples: list[int] = []
        self.own: list[str] = []
        self.validated: list[str] = []

    def training_step(self, batch):
        self.samples += batch[2].tolist()
        return nn.functional.cross_entropy(self.layers(batch[0]), batch[1])

    def validation_step(self, batch):
        self.validated.append(digest_of(self.state_dict()))

    def on_train_epoch_end(self):
        self.own.append(digest_of(self.state_dict()))

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.01)
        return [optimizer], [torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)]


class Manual(Model):
    """Takes its steps itself, with one optimizer or two."""

    num_optimizers = 1

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch):
        optimizer = self.optimizers()
        optimizer.zero_grad()
        self.manual_backward(super().training_step(batch))
        optimizer.step()

    def configure_optimizers(self):
        return [torch.optim.SGD(self.parameters(), lr=0.1) for _ in range(self.num_optimizers)]


class TwoOptimizers(Manual):
    num_optimizers = 2


class Failing(Model):
    """Fails in its eighth step, on rank 1 alone."""

    def training_step(self, batch):
        if self.global_step == 7 and self.global_rank == 1:
            raise ZeroDivisionError("made to fail")
        return super().training_step(batch)


class Overflowing(Model):
    """Overflows in its third step, on rank 1 alone."""

    def training_step(self, batch):
        is_too_much = self.global_step == 2 and self.global_rank == 1
        return super().training_step(batch) * (float("inf") if is_too_much else 1.0)


def digest_of(state: dict[str, Tensor]) -> str:
    """Return a name for parameters and buffers that is the same only for the same bits."""
    whole = torch.cat([state[name].detach().float().flatten() for name in sorted(state)])
    return hashlib.sha1(whole.numpy().tobytes()).hexdigest() if whole.isfinite().all() else "not finite"


def fit(
    num_epochs: int,
    folder: Path,
    *,
    make: Callable[[], Model] = Model,
    resume_from: Path | None = None,
    **options: Any,
) -> tuple[Trainer, Model]:
    """Train with five batches an epoch, which are the same in all epochs."""
    data = TensorDataset(INPUTS, INPUTS[:, :5].argmax(1), torch.arange(40))
    model = make()
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "logger": False, "log_every_n_steps": 1}
    trainer = Trainer(
        accelerator="cpu",
        devices=2,
        strategy=HeadwayLocalStrategy(**OPTIONS),
        max_epochs=num_epochs,
        default_root_dir=folder,
        **{**quiet, "enable_checkpointing": False, **options},
    )
    trainer.fit(
        model,
        DataLoader(data, batch_size=4),
        DataLoader(data, batch_size=20),
        ckpt_path=None if resume_from is None else str(resume_from),
    )
    return trainer, model


def refusals(folder: Path) -> list[str]:
    """Return what is said to wrong options and models."""
    attempts: list[Callable[[], object]] = [
        lambda: HeadwayLocalStrategy(0),
        lambda: HeadwayLocalStrategy(config="dense"),
        lambda: HeadwayLocalStrategy(find_unused_parameters=True, ddp_comm_hook=print),
        lambda: fit(1, folder, make=TwoOptimizers),
    ]
    return [refusal(attempt) for attempt in attempts]


def warnings_of_resuming(checkpoint: Path, folder: Path) -> tuple[list[str], Model]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        _, model = fit(4, folder, resume_from=checkpoint)
    return [str(each.message) for each in caught if "Headway" in str(each.message)], model


def main(folder: Path) -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    keeper = ModelCheckpoint(folder / "kept", save_top_k=-1, filename="{epoch}")
    log = {"logger": CSVLogger(folder / "log"), "callbacks": [HeadwayLogging(every_n_steps=5), keeper]}
    trainer, whole = fit(4, folder, enable_checkpointing=True, num_sanity_val_steps=0, **log)
    handle = trainer.strategy.handle
    saw: dict[str, Any] = {"steps": handle.num_steps, "exchanges": len(handle.records)}
    saw |= {"saved": handle.statistics().saved, "model": type(trainer.strategy.model).__name__}
    saw |= {"samples": whole.samples[:20], "own": whole.own[1], "at the end": digest_of(whole.state_dict())}
    saw["kept"] = sorted(path.name for path in (folder / "kept").iterdir())
    halfway = folder / "kept" / "epoch=1.ckpt"
    saved = torch.load(halfway, weights_only=True)
    saved_model = Model()
    saved_model.load_state_dict(saved["state_dict"])
    saw |= {"validated": whole.validated[1], "in the checkpoint": digest_of(saved_model.state_dict())}
    saw["saved optimizer"] = sorted(saved["optimizer_states"][0])
    trainer.validate(whole, DataLoader(TensorDataset(INPUTS)), verbose=False)
    trainer.save_checkpoint(folder / "end.ckpt")

    again, resumed = fit(4, folder, resume_from=halfway)
    saw["resumed is equal"] = digest_of(resumed.state_dict()) == saw["at the end"]
    saw["resumed steps"] = again.strategy.handle.num_steps
    longer, _ = fit(5, folder, resume_from=folder / "end.ckpt")
    saw["steps from the end"] = longer.strategy.handle.num_steps

    if trainer.is_global_zero:  # the other rank still has its own
        Path(f"{halfway}.headway-0").unlink()
    saw["warned"], without = warnings_of_resuming(halfway, folder)
    saw["without"] = digest_of(without.state_dict())

    _, manual = fit(1, folder, make=Manual)
    saw["manual"] = digest_of(manual.state_dict())
    fewer, _ = fit(1, folder, accumulate_grad_batches=2)
    saw["accumulated steps"] = fewer.strategy.handle.num_steps
    scaler = torch.amp.GradScaler("cpu", init_scale=512.0)
    precision = {"plugins": MixedPrecision("16-mixed", "cpu", scaler), "gradient_clip_val": 1.0}
    scaled, overflown = fit(1, folder, make=Overflowing, **precision)
    saw |= {"scale": scaler.get_scale(), "scaled": digest_of(overflown.state_dict())}
    saw["scaled steps"] = scaled.strategy.handle.num_steps
    saw["refusals"] = refusals(folder)

    started_at = time.monotonic()
    try:
        fit(2, folder, make=Failing)
    except (ZeroDivisionError, headway.PeerLost) as error:
        saw["failure"] = type(error).__name__
    saw["failed in time"] = time.monotonic() - started_at < CONFIG.timeout_s / 2
    print("\n" + json.dumps(saw), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
