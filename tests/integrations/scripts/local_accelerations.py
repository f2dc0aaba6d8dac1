"""One rank of several trainings with local steps and Accelerate; prints what it saw as a line of JSON.

local_accelerations.py FOLDER, with the environment of torchrun.
"""

from __future__ import annotations

import hashlib
import json
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from safetensors.torch import load_file
from tests.ranks import refusal
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

import headway
from headway.integrations.accelerate import SteppedLocally, register_for_checkpointing, wrap

LINK = headway.Link(latency_s=0.001, bandwidth_bps=1e8)
CONFIG = headway.Fixed(exchange="allgather_topk", ratio=0.1, link=LINK, timeout_s=20)
OPTIONS = {"steps": 3, "config": CONFIG, "overlap": 2}
INPUTS = torch.randn(40, 20, generator=torch.Generator().manual_seed(0))


class Run:
    """A training of its own: five batches an epoch."""

    def __init__(self, *, num_accumulated: int = 1) -> None:
        AcceleratorState._reset_state()
        self.accelerator = Accelerator(cpu=True, gradient_accumulation_steps=num_accumulated)
        torch.manual_seed(self.accelerator.process_index)
        bare = nn.Sequential(nn.Linear(20, 50), nn.BatchNorm1d(50), nn.ReLU(), nn.Linear(50, 5))
        inner = torch.optim.AdamW(bare.parameters(), lr=0.05)
        scheduler = torch.optim.lr_scheduler.LinearLR(inner, total_iters=40)
        data = TensorDataset(INPUTS, INPUTS[:, :5].argmax(1), torch.arange(40))
        self.loader, self.scheduler = self.accelerator.prepare(DataLoader(data, batch_size=4), scheduler)
        self.model, self.optimizer = wrap(self.accelerator, bare, inner, **OPTIONS)
        register_for_checkpointing(self.accelerator, self.optimizer.handle, name="mine")
        self.samples: set[int] = set()

    def train(self, num_epochs: int) -> None:
        for _ in range(num_epochs):
            for inputs, labels, samples in self.loader:
                self.samples |= {*samples.tolist()}
                with self.accelerator.accumulate(self.model):
                    self.accelerator.backward(nn.functional.cross_entropy(self.model(inputs), labels))
                    self.accelerator.clip_grad_norm_(self.model.parameters(), 1.0)
                    self.optimizer.step()
                    self.scheduler.step()
                    self.optimizer.zero_grad()

    def end(self) -> str:
        self.optimizer.handle.average_()
        self.optimizer.handle.close()
        return digest_of(self.model.state_dict())


def digest_of(state: dict[str, Tensor]) -> str:
    """Return a name for parameters and buffers that is the same only for the same bits."""
    whole = torch.cat([state[name].detach().float().flatten() for name in sorted(state)])
    return hashlib.sha1(whole.numpy().tobytes()).hexdigest() if whole.isfinite().all() else "not finite"


def step_after_overflow(folder: Path) -> dict[str, Any]:
    """Return the scale, and the model, where rank 1 alone skips a step; half precision needs a GPU, so by hand."""
    run = Run()
    scaler = torch.amp.GradScaler("cpu", init_scale=512.0)
    run.accelerator.scaler = scaler
    prepared = run.accelerator.prepare_optimizer(torch.optim.SGD(run.model.parameters(), lr=0.1))
    handle = headway.local.wrap(run.model, prepared.optimizer, **OPTIONS)
    optimizer = SteppedLocally(run.accelerator, prepared, handle)
    for step in range(4):
        is_too_much = step == 1 and run.accelerator.process_index == 1
        scaler.scale(run.model(INPUTS).sum() * (float("inf") if is_too_much else 0.01)).backward()
        optimizer.step()
        optimizer.zero_grad()
    handle.average_()
    handle.close()
    run.optimizer.handle.close()
    return {"scale": scaler.get_scale(), "scaled": digest_of(run.model.state_dict())}


def refusals(accelerator: Accelerator) -> list[str]:
    """Return what is said to wrong options, models and accelerators."""
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    sharded = SimpleNamespace(distributed_type=accelerator.distributed_type.__class__("FSDP"))
    alone = SimpleNamespace(distributed_type=accelerator.distributed_type.__class__("NO"), num_processes=1)
    attempts: list[Callable[[], object]] = [
        lambda: wrap(accelerator, model, optimizer, 0),
        lambda: wrap(accelerator, model, optimizer, config="dense"),
        lambda: wrap(accelerator, DistributedDataParallel(model), optimizer),
        lambda: wrap(sharded, model, optimizer),
        lambda: wrap(alone, model, optimizer),
    ]
    return [refusal(attempt) for attempt in attempts]


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    whole = Run()
    whole.train(1)
    whole.accelerator.save_state(str(folder))
    handle = whole.optimizer.handle
    saw: dict[str, Any] = {"own": digest_of(whole.model.state_dict())}
    with handle.averaged():
        saw["common"] = digest_of(whole.model.state_dict())
    whole.train(1)
    saw |= {"samples": sorted(whole.samples), "at the end": whole.end(), "lr": whole.optimizer.param_groups[0]["lr"]}
    saw |= {"steps": handle.num_steps, "exchanges": len(handle.records), "saved": handle.statistics().saved}
    saw["in the checkpoint"] = digest_of(load_file(folder / "model.safetensors"))
    saw["saved optimizer"] = sorted(torch.load(folder / "optimizer.bin", weights_only=True))
    saw["files"] = sorted(path.name for path in folder.glob("mine*"))

    resumed = Run()
    resumed.accelerator.load_state(str(folder))
    saw["loaded"] = digest_of(resumed.model.state_dict())
    resumed.train(1)
    saw["resumed is equal"] = resumed.end() == saw["at the end"]
    saw["resumed steps"] = resumed.optimizer.handle.num_steps

    whole.accelerator.wait_for_everyone()
    if whole.accelerator.is_main_process:  # the other rank still has its own
        (folder / "mine-0.pt").unlink()
    whole.accelerator.wait_for_everyone()
    without = Run()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        without.accelerator.load_state(str(folder))
    saw["warned"] = [str(each.message) for each in caught if "Headway" in str(each.message)]
    saw["loaded without"] = digest_of(without.model.state_dict())
    saw["without"] = without.end()

    accumulated = Run(num_accumulated=2)
    accumulated.train(1)
    saw |= {"accumulated": accumulated.end(), "accumulated steps": accumulated.optimizer.handle.num_steps}
    saw |= step_after_overflow(folder)
    saw["refusals"] = refusals(accumulated.accelerator)
    print("\n" + json.dumps(saw), flush=True)
    accumulated.accelerator.end_training()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
