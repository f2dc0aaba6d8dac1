"""The training loop on a pool of ranks: it learns, stops on all ranks at once, and resumes bitwise."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from headway import Fixed, Link, local
from headway.report import read_run
from headway.train import checkpoints, methods
from headway.train import trainer as trainer_module
from headway.train.settings import TrainSettings
from headway.train.trainer import Trainer
from tests.pool import RankFailed

pytestmark = pytest.mark.pool

COMMON = {"model": "mlp", "eval_every": 8, "checkpoint_every": 0, "eval_samples": 200, "timeout_s": 20.0}


class Asking:
    """Replaces the lab's `Control`, which is called at every step: asks this rank to stop at one of them.

    It waits until the rank has sent its step, so that it is this one.
    """

    def __init__(self, event: threading.Event, step: int | None) -> None:
        self._event = event
        self._step = step
        self.trainer: Trainer | None = None

    def step(self, number: int) -> None:
        if number == self._step:
            self._event.set()
            deadline = time.monotonic() + 20
            while not self.trainer._stop._has_sent and time.monotonic() < deadline:
                time.sleep(0.001)


def train(folder: str, options: dict, stop_at: tuple[int | None, ...] = ()) -> tuple[str, bytes]:
    """Train, with each rank asked to stop at its own step; return how it ended and the bits of the model."""
    asked = threading.Event()
    asking = Asking(asked, stop_at[dist.get_rank()] if stop_at else None)
    store = dist.FileStore(f"{folder}.store{len(stop_at)}", dist.get_world_size())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trainer_module, "Control", lambda: asking)
        patch.setattr(methods, "local", SimpleNamespace(wrap=wrap_with_fixed_plan))
        settings = TrainSettings(**{**COMMON, **options})
        trainer = asking.trainer = Trainer(settings, Path(folder), {"network": "pool"}, asked, store)
        reason = trainer.run()
        trainer.close()
    model = torch.cat([p.detach().flatten() for p in trainer._model.parameters()])
    return reason, model.numpy().tobytes()


def wrap_with_fixed_plan(model, optimizer, steps, *, config, group):
    """Take local steps by a plan that depends on no measured time, and apply averages 2 steps late."""
    link = Link(latency_s=0.001, bandwidth_bps=1e8)
    fixed = Fixed(exchange="allgather_topk", ratio=0.05, link=link, seed=config.seed, timeout_s=config.timeout_s)
    return local.wrap(model, optimizer, steps, config=fixed, overlap=2, group=group)


@pytest.mark.parametrize(
    "options",
    [
        {"method": "ddp", "optimizer": "adamw", "lr": 0.001},
        {"method": "allgather_topk", "ratio": 0.05, "schedule": "cosine"},
        {"method": "gossip-dcd", "warmup_steps": 4},
        {"method": "local", "local_steps": "5", "eval_every": 3},
    ],
    ids=lambda options: options["method"],
)
def test_a_resumed_run_ends_with_the_bits_of_an_uninterrupted_one(pool, tmp_path, options):
    """Ranks are asked at different steps, and must stop after the same one."""
    options = {**options, "steps": 16}
    whole = pool.run(train, str(tmp_path / "whole"), options)
    stopped = pool.run(train, str(tmp_path / "parts"), options, (5, 6))
    steps = [checkpoints.steps_of(tmp_path / "parts", rank) for rank in range(2)]
    resumed = pool.run(train, str(tmp_path / "parts"), options)
    ended = [reason for found in (whole, stopped, resumed) for reason, _ in found]
    assert ended == ["finished", "finished", "stopped", "stopped", "finished", "finished"]
    assert steps[0] == steps[1]
    assert steps[0] in ([6], [7])  # the later of the two, or the step of rank 1 when it saw that rank 0 stops
    assert [bits for _, bits in resumed] == [bits for _, bits in whole]
    run = read_run(tmp_path / "parts")
    assert [step["step"] for step in run.steps] == list(range(1, 17))
    assert run.end["reason"] == "finished"
    assert all(later["time_s"] > earlier["time_s"] for earlier, later in zip(run.steps, run.steps[1:], strict=False))


def test_one_rank_that_is_asked_stops_all(pool, tmp_path):
    """As when only one of two machines gets the signal; the other learns of it through the store."""
    found = pool.run(train, str(tmp_path / "run"), {"method": "ddp", "steps": 100_000}, (None, 4))
    assert [reason for reason, _ in found] == ["stopped", "stopped"]
    steps = [checkpoints.steps_of(tmp_path / "run", rank) for rank in range(2)]
    assert steps[0] == steps[1]
    assert len(read_run(tmp_path / "run").ranks[0]["wait_s"]) == 2


def train_on_other_data(folder: str) -> None:
    train(folder, {"workload": "text", "model": None, "data": f"{folder}-{dist.get_rank()}.txt", "steps": 2})


def test_ranks_with_different_data_are_named(pool, tmp_path):
    for rank, words in enumerate(("one fish, ", "two fish, ")):
        (tmp_path / f"run-{rank}.txt").write_text(words * 500)
    with pytest.raises(RankFailed, match=r"ranks \[1\] have other data than rank 0"):
        pool.run(train_on_other_data, str(tmp_path / "run"))


def test_a_resumed_run_with_more_steps_learns_more(pool, tmp_path):
    options = {"method": "star_topk", "ratio": 0.1, "lr": 0.05, "steps": 16}
    pool.run(train, str(tmp_path), options)
    pool.run(train, str(tmp_path), {**options, "steps": 48})
    run = read_run(tmp_path)
    assert len(run.steps) == run.start["num_steps"] == 48
    assert run.evaluations[-1]["accuracy"] > 0.7 > run.evaluations[0]["accuracy"]
    assert 0.7 < run.saved < 0.95  # of a tenth, indices and the first steps count too
    assert run.steps[-1]["ratio"] == pytest.approx(0.1)
    assert 0 < run.steps[-1]["gain"] < 1
    assert [len(event["wait_s"]) for event in run.ranks] == [2] * 6


@pytest.mark.parametrize("method", ["ddp", "allgather_topk", "local"])
def test_models_are_equal_on_all_ranks_in_an_evaluation(pool, tmp_path, method):
    """Each rank evaluates its share of the samples, so the figures would otherwise mix different models."""
    found = pool.run(models_while_testing, str(tmp_path), method, num_ranks=2)
    assert found[0] == found[1]
    assert len(set(found[0])) == 3


def models_while_testing(folder: str, method: str) -> list[tuple[float, ...]]:
    """Return a number for each tensor of the model, statistics of batch norm included, at each evaluation."""
    seen = []

    def spy(model, *args, **options):
        seen.append(tuple(tensor.double().sum().item() for tensor in model.state_dict().values()))
        return real(model, *args, **options)

    options = {"steps": 3, "eval_every": 1, "batch_size": 4, "eval_samples": 16, "local_steps": "2"}
    real, trainer_module.evaluate = trainer_module.evaluate, spy
    try:
        train(folder, {"model": "resnet", "method": method, **options})
    finally:
        trainer_module.evaluate = real
    return seen


def test_local_steps_end_with_one_model_that_has_learned(pool, tmp_path):
    options = {"method": "local", "local_steps": "5", "lr": 0.05, "steps": 48}
    found = pool.run(train, str(tmp_path), options)
    assert found[0] == found[1]
    run = read_run(tmp_path)
    assert run.evaluations[-1]["accuracy"] > 0.7 > run.evaluations[0]["accuracy"]
    assert sum(step["wire_bytes"] > 0 for step in run.steps) == 9


def test_the_last_two_checkpoints_are_kept(pool, tmp_path):
    pool.run(train, str(tmp_path), {"method": "dense", "steps": 10, "checkpoint_every": 3})
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["step-00000009", "step-00000010"]
    events = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    assert [event["step"] for event in events if event["event"] == "checkpoint"] == [3, 6, 9, 10]
