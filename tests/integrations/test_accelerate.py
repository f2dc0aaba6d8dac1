"""The Accelerate adapter with a stub; the example runs with the real Accelerate."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import nn

import headway
from headway.integrations import accelerate
from tests.ddp.training import LINK, mlp, parameters_of, step_once, wrap

CONFIG = headway.Fixed(exchange="allgather_topk", ratio=0.05, fusion="bucket", link=LINK, timeout_s=20)


class Accelerator:
    """A stub with the checkpoint hooks only."""

    device = torch.device("cpu")

    def register_save_state_pre_hook(self, hook):
        self.save = lambda folder: hook([], [], folder)

    def register_load_state_pre_hook(self, hook):
        self.load = lambda folder: hook([], folder)


def train_save_and_load(folder: str) -> dict:
    """Return whether 8 steps equal 4 steps and 4 more with another handle; compiled first, then not."""
    ddp = wrap(mlp())
    handle = accelerate.attach(SimpleNamespace(_orig_mod=ddp), CONFIG)
    accelerator = Accelerator()
    accelerate.register_for_checkpointing(accelerator, handle, name="mine")
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05)
    for step in range(4):
        step_once(ddp, optimizer, step)
    accelerator.save(folder)
    weights = {name: tensor.clone() for name, tensor in ddp.module.state_dict().items()}
    for step in range(4, 8):
        step_once(ddp, optimizer, step)
    handle.close()

    other = wrap(mlp())
    other.module.load_state_dict(weights)
    other_handle = accelerate.attach(other, CONFIG)
    accelerate.register_for_checkpointing(accelerator, other_handle, name="mine")
    accelerator.load(folder)
    optimizer = torch.optim.SGD(other.parameters(), lr=0.05)
    for step in range(4, 8):
        step_once(other, optimizer, step)
    other_handle.close()
    saved = handle.statistics().saved
    return {"saved": saved, "is equal": parameters_of(ddp).equal(parameters_of(other))}


@pytest.mark.timeout(60)
def test_states_of_accelerate_hold_the_residuals_of_all_ranks(pool, tmp_path):
    for saw in pool.run(train_save_and_load, str(tmp_path), num_ranks=2):
        assert saw["saved"] > 0.5
        assert saw["is equal"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine-0.pt", "mine-1.pt"]


def train_with_scalers() -> list[float | None]:
    """Return the scales that two handles know; half precision needs a GPU, so the scalers are put in place by hand."""
    from accelerate import Accelerator

    scales = []
    for scale in (None, 1024.0):
        accelerator = Accelerator(cpu=True)
        model = accelerator.prepare(wrap(mlp()))
        accelerator.scaler = None if scale is None else torch.amp.GradScaler("cpu", init_scale=scale)
        handle = accelerate.attach(model, CONFIG)
        step_once(model, torch.optim.SGD(model.parameters(), lr=0.05), 0)
        scales.append(handle.state_dict()["loss_scale"])
        handle.close()
    return scales


@pytest.mark.timeout(60)
def test_the_scaler_of_the_accelerator_that_prepared_the_model_is_found(pool):
    assert pool.run(train_with_scalers, num_ranks=2) == [[None, 1024.0]] * 2


@pytest.mark.parametrize("model", [nn.Linear(1, 1), SimpleNamespace()])
def test_models_without_ddp_are_rejected(model):
    with pytest.raises(ValueError, match="start with torchrun --nproc-per-node 2 or more"):
        accelerate.attach(model)
