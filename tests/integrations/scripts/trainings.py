"""One rank of several trainings with the Hugging Face Trainer; prints what it saw as a line of JSON.

trainings.py FOLDER, with the environment of torchrun.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from tests.ranks import refusal
from torch import nn
from transformers import Trainer, TrainerCallback, TrainingArguments

import headway
from headway.integrations.transformers import HeadwayCallback

LINK = headway.Link(latency_s=0.001, bandwidth_bps=1e8)
CONFIG = headway.Fixed(exchange="allgather_topk", ratio=0.1, fusion="step", link=LINK, timeout_s=20)
"""Nothing is left to choose by when buckets arrive: runs are compared to the bit."""


SGD = {"optim": "sgd", "optim_args": "momentum=0.5", "weight_decay": 0.01, "max_grad_norm": 0.0}
"""By default it is AdamW, and gradients are clipped."""


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(20, 50), nn.ReLU(), nn.Linear(50, 5))
        self.register_buffer("seen", torch.zeros(1))

    def forward(self, inputs, labels):
        if self.training:
            self.seen += 1 + int(os.environ.get("RANK", "0"))
        logits = self.layers(inputs)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


class Listener(TrainerCallback):
    """Comes before Headway's callback in the list, as those that write logs do."""

    def __init__(self) -> None:
        self.heard: list[str] = []
        self.read_state: Callable[[], dict[str, Any]] = dict
        self.state_at_begin: dict[str, Any] = {}
        self.momenta: set[float] = set()
        self.fails = False

    def on_step_begin(self, args, state, control, **kwargs):
        if state.global_step == 0:
            self.state_at_begin = self.read_state()

    def on_step_end(self, args, state, control, optimizer=None, **kwargs):
        self.momenta |= {group.get("momentum") for group in optimizer.param_groups}
        if self.fails:
            raise ZeroDivisionError("made to fail")

    def on_log(self, args, state, control, logs=None, **kwargs):
        self.heard += list(logs)


def make(
    folder: Path, listener: TrainerCallback | None = None, *, settings: dict[str, Any] = SGD, **options: Any
) -> tuple[Trainer, HeadwayCallback]:
    inputs = torch.randn(40, 20, generator=torch.Generator().manual_seed(0))
    samples = [{"inputs": row, "labels": row[:5].argmax()} for row in inputs]
    arguments = TrainingArguments(
        output_dir=str(folder),
        use_cpu=True,
        per_device_train_batch_size=4,
        max_steps=8,
        save_steps=4,
        logging_steps=2,
        learning_rate=0.01,
        ddp_find_unused_parameters=False,
        report_to="none",
        disable_tqdm=True,
        **settings,
    )
    models = options or {"model": Model()}
    trainer = Trainer(
        args=arguments, train_dataset=samples, eval_dataset=samples, callbacks=[listener or Listener()], **models
    )
    callback = HeadwayCallback(trainer, CONFIG)
    trainer.add_callback(callback)
    return trainer, callback


def settings_of(trainer: Trainer) -> list[tuple[float, float]]:
    return [(group["momentum"], group["weight_decay"]) for group in trainer.optimizer.param_groups]


def warnings_in(action: Callable[[], object]) -> list[str]:
    """Return the warnings of Headway."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        action()
    return [str(each.message) for each in caught if "Headway" in str(each.message) or "residual" in str(each.message)]


def weights_of(trainer: Trainer) -> list[float]:
    return torch.cat([parameter.detach().flatten() for parameter in trainer.model.parameters()]).tolist()


def refusals(trainer: Trainer) -> list[str]:
    """Return what is said to wrong options, and to several processes without DDP."""
    bare = SimpleNamespace(model_wrapped=nn.Linear(1, 1), callback_handler=SimpleNamespace(callbacks=[]))
    attempts: list[Callable[[], object]] = [
        lambda: HeadwayCallback(CONFIG),
        lambda: HeadwayCallback(trainer, "dense"),
        lambda: HeadwayCallback(bare).on_train_begin(SimpleNamespace(world_size=2), trainer.state, trainer.control),
    ]
    return [refusal(attempt) for attempt in attempts]


def train_alone_twice() -> list[str]:
    """Return the warnings where there is one process."""
    bare = SimpleNamespace(model_wrapped=nn.Linear(1, 1), callback_handler=SimpleNamespace(callbacks=[]))
    callback = HeadwayCallback(bare)
    arguments, state = SimpleNamespace(world_size=1), SimpleNamespace(log_history=[{}])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            callback.on_train_begin(arguments, state, None)
            callback.on_log(arguments, state, None, logs={})
            callback.on_save(arguments, state, None)
            callback.on_train_end(arguments, state, None)
    assert callback.handle is None
    return [str(each.message) for each in caught]


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    saw: dict[str, Any] = {}
    listener = Listener()
    trainer, callback = make(folder / "whole", listener)
    trainer.train()
    saw["buffer"] = trainer.model.seen.item()
    trainer.evaluate()
    whole, first = weights_of(trainer), callback.handle
    saw |= {"steps": first.statistics().step, "saved": first.statistics().saved}
    saw["heard"] = listener.heard.count("headway/saved")
    saw["kept"] = sum("headway/saved" in entry for entry in trainer.state.log_history)
    saw |= {"momenta": [*listener.momenta], "settings after": settings_of(trainer)}
    saw["files"] = sorted(path.name for path in (folder / "whole" / "checkpoint-4").glob("headway*"))

    resumed, its = make(folder / "whole")
    resumed.train(resume_from_checkpoint=str(folder / "whole" / "checkpoint-4"))
    saw["resumed is equal"] = weights_of(resumed) == whole
    saw["resumed steps"] = its.handle.statistics().step

    ended_with = first.state_dict()
    listener.read_state = lambda: callback.handle.state_dict()
    trainer.train()
    saw["is another handle"] = callback.handle is not first
    saw["steps of both"] = callback.handle.statistics().step
    for name in ("residual", "velocity"):
        saw[f"{name} is kept"] = bool(ended_with[name].any()) and listener.state_at_begin[name].equal(ended_with[name])
    listener.fails = True
    with contextlib.suppress(ZeroDivisionError):
        trainer.train()  # its handle stays open, until the next one closes it
    listener.fails = False
    listener.momenta.clear()
    trainer.args.max_grad_norm = 1.0
    saw["warned of clipping"] = warnings_in(trainer.train)
    saw["momenta with clipping"] = [*listener.momenta]

    fresh, fresh_callback = make(folder / "fresh", settings={}, model_init=Model)
    fresh.accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=512.0)  # half precision needs a GPU
    fresh.train()
    saw["loss scale"] = fresh_callback.handle.state_dict()["loss_scale"]
    fresh.accelerator.scaler = None
    fresh.train()
    saw["steps of a new model"] = fresh_callback.handle.statistics().step

    if trainer.is_world_process_zero():  # the other rank still has its own
        (folder / "whole" / "checkpoint-4" / "headway-0.pt").unlink()
    trainer.accelerator.wait_for_everyone()
    without, _ = make(folder / "whole")
    checkpoint = str(folder / "whole" / "checkpoint-4")
    saw["warned"] = warnings_in(lambda: without.train(resume_from_checkpoint=checkpoint))
    saw["without is equal"] = weights_of(without) == whole
    saw |= {"refusals": refusals(trainer), "alone": train_alone_twice()}
    saw["rank"] = trainer.args.process_index
    print("\n" + json.dumps(saw), flush=True)
    trainer.accelerator.end_training()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
