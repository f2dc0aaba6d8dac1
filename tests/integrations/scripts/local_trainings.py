"""One rank of several trainings with local steps in the Hugging Face Trainer; prints what it saw as a line of JSON.

local_trainings.py FOLDER, with the environment of torchrun.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from safetensors.torch import load_file
from tests.ranks import refusal
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from transformers import Trainer, TrainerCallback, TrainingArguments

import headway
from headway.integrations.transformers import HeadwayLocalCallback

LINK = headway.Link(latency_s=0.001, bandwidth_bps=1e8)
CONFIG = headway.Fixed(exchange="allgather_topk", ratio=0.1, link=LINK, timeout_s=20)
OPTIONS = {"steps": 3, "config": CONFIG, "overlap": 2}
"""Checkpoints after four steps are in the middle of a round."""


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(int(os.environ["RANK"]))
        self.layers = nn.Sequential(nn.Linear(20, 50), nn.BatchNorm1d(50), nn.ReLU(), nn.Linear(50, 5))
        self.evaluated: list[str] = []

    def forward(self, inputs, labels, num_items_in_batch=None):
        if not self.training:
            self.evaluated.append(digest_of(self.state_dict()))
        logits = self.layers(inputs)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


class Listener(TrainerCallback):
    """Comes before Headway's callback in the list, as those that write logs do."""

    def __init__(self) -> None:
        self.heard: list[str] = []
        self.own: dict[int, str] = {}
        self.fails = False

    def on_step_end(self, args, state, control, model=None, **kwargs):
        self.own[state.global_step] = digest_of(model.state_dict())

    def on_prediction_step(self, args, state, control, **kwargs):
        if self.fails:
            raise ZeroDivisionError("made to fail")

    def on_log(self, args, state, control, logs=None, **kwargs):
        self.heard += list(logs)


def digest_of(state: dict[str, Tensor]) -> str:
    """Return a name for parameters and buffers that is the same only for the same bits."""
    whole = torch.cat([state[name].detach().float().flatten() for name in sorted(state)])
    return hashlib.sha1(whole.numpy().tobytes()).hexdigest() if whole.isfinite().all() else "not finite"


def model_of(trainer: Trainer) -> str:
    return digest_of(trainer.model.state_dict())


def make(folder: Path, listener: TrainerCallback | None = None, **settings: Any) -> tuple[Trainer, Any]:
    inputs = torch.randn(40, 20, generator=torch.Generator().manual_seed(0))
    samples = [{"inputs": row, "labels": row[:5].argmax()} for row in inputs]
    defaults = {
        "per_device_train_batch_size": 4,
        "per_device_eval_batch_size": 20,
        "max_steps": 8,
        "eval_strategy": "steps",
        "eval_steps": 4,
        "save_steps": 4,
        "logging_steps": 2,
        "learning_rate": 0.05,
    }
    quiet = {"use_cpu": True, "report_to": "none", "disable_tqdm": True}
    arguments = TrainingArguments(output_dir=str(folder), **quiet, **{**defaults, **settings})
    data = {"train_dataset": samples, "eval_dataset": samples}
    trainer = Trainer(Model(), arguments, **data, callbacks=[listener or Listener()])
    return trainer, HeadwayLocalCallback(trainer, **OPTIONS)


def train(
    folder: Path, listener: TrainerCallback | None = None, resume_from: Path | None = None, **settings: Any
) -> tuple[Trainer, HeadwayLocalCallback]:
    trainer, callback = make(folder, listener, **settings)
    trainer.add_callback(callback)
    trainer.train(resume_from_checkpoint=None if resume_from is None else str(resume_from))
    return trainer, callback


def warnings_in(action: Callable[[], object]) -> list[str]:
    """Return the warnings of Headway."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        action()
    return [str(each.message) for each in caught if "Headway" in str(each.message) or "local" in str(each.message)]


def refusals(trainer: Trainer, folder: Path) -> list[str]:
    """Return what is said to wrong options, and to a model that is in DDP."""

    def come_late() -> None:
        late, callback = make(folder, max_steps=1, eval_strategy="no", save_strategy="no")
        late.train()  # without the callback, which is not in the list yet
        assert isinstance(late.model_wrapped, DistributedDataParallel)
        late.add_callback(callback)
        late.train()

    sharded = SimpleNamespace(callback_handler=None, is_fsdp_enabled=True)
    attempts: list[Callable[[], object]] = [
        lambda: HeadwayLocalCallback(CONFIG),
        lambda: HeadwayLocalCallback(trainer, 0),
        lambda: HeadwayLocalCallback(trainer, config="dense"),
        lambda: HeadwayLocalCallback(sharded),
        come_late,
    ]
    return [refusal(attempt) for attempt in attempts]


def train_alone(trainer: Trainer) -> list[str]:
    """Return the warnings where there is one process."""
    callback = HeadwayLocalCallback(trainer)
    arguments = SimpleNamespace(world_size=1)

    def go_through_events() -> None:
        for event in ("train_begin", "step_begin", "step_end", "save", "train_end"):
            getattr(callback, f"on_{event}")(arguments, SimpleNamespace(), None)

    return warnings_in(go_through_events)


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    listener = Listener()
    trainer, callback = train(folder / "whole", listener)
    saw: dict[str, Any] = {"steps": callback.handle.num_steps, "exchanges": len(callback.handle.records)}
    saw |= {"saved": callback.handle.statistics().saved, "at the end": model_of(trainer)}
    saw["is in DDP"] = isinstance(trainer.model_wrapped, DistributedDataParallel)
    saw["heard"] = listener.heard.count("headway/local_steps")
    halfway = folder / "whole" / "checkpoint-4"
    saw["files"] = sorted(path.name for path in halfway.glob("headway*"))
    saw |= {"own": listener.own[4], "evaluated": trainer.model.evaluated[0]}
    saw["in the checkpoint"] = digest_of(load_file(halfway / "model.safetensors"))
    saw["saved optimizer"] = sorted(torch.load(halfway / "optimizer.pt", weights_only=True))

    resumed, its = train(folder / "whole", resume_from=halfway)
    saw["resumed is equal"] = model_of(resumed) == saw["at the end"]
    saw["resumed steps"] = its.handle.num_steps
    accumulated, its = train(folder / "accumulated", gradient_accumulation_steps=2, max_steps=3)
    saw |= {"accumulated": model_of(accumulated), "accumulated steps": its.handle.num_steps}

    best, _ = train(folder / "best", load_best_model_at_end=True, learning_rate=5.0, eval_steps=2, save_steps=2)
    checkpoint = Path(best.state.best_model_checkpoint)
    saw["best"] = checkpoint.name
    saw["best is loaded"] = model_of(best) == digest_of(load_file(checkpoint / "model.safetensors"))

    listener.fails = True
    with contextlib.suppress(ZeroDivisionError):
        trainer.train()  # in an evaluation: its handle stays open, until the next one closes it
    listener.fails = False
    trainer.train()
    saw |= {"second": model_of(trainer), "second steps": callback.handle.num_steps}
    trainer.model_accepts_loss_kwargs = True
    trainer.args.max_steps = 1
    saw["warned of counting"] = warnings_in(trainer.train)

    if trainer.is_world_process_zero():  # the other rank still has its own
        (halfway / "headway-0.pt").unlink()
    trainer.accelerator.wait_for_everyone()
    saw["warned"] = warnings_in(lambda: saw.update(without=model_of(train(folder / "whole", None, halfway)[0])))
    saw |= {"refusals": refusals(trainer, folder / "late"), "alone": train_alone(trainer)}
    print("\n" + json.dumps(saw), flush=True)
    trainer.accelerator.end_training()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
