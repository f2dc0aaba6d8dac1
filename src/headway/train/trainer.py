"""The training loop of one rank."""

from __future__ import annotations

import threading
import zlib
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import Store

from headway.errors import PeerLost
from headway.lab import Control
from headway.report import Recorder, TensorBoard, read
from headway.report.events import Listener
from headway.report.reading import Reading
from headway.train import checkpoints
from headway.train.evaluation import evaluate, loss_of
from headway.train.methods import Method, make_method, make_optimizer
from headway.train.models import build_model
from headway.train.order import Order
from headway.train.samples import Task
from headway.train.schedule import lr_factor
from headway.train.settings import Settings
from headway.train.stopping import Stop

_PER_RANK = ("compress_s", "wait_s", "transfer_s")


class Trainer:
    """Trains as the settings say, and writes a run directory. Every rank makes one, in a process group.

    It goes on from the latest checkpoint that all ranks have, if there is one.

    Args:
        settings: What to do.
        folder: The run directory.
        about: Fields of the event "start" beside those that follow from the settings.
        asked_to_stop: Is set when this rank is to stop; all end after the same step, and save a checkpoint.
        store: That of the process group, through which ranks hear that another one is to stop.
        listener: Called with every event, on rank 0.
    """

    def __init__(
        self,
        settings: Settings,
        folder: Path,
        about: Mapping[str, Any],
        asked_to_stop: threading.Event,
        store: Store,
        listener: Listener = lambda event: None,
    ) -> None:
        self._settings = settings
        self._folder = folder
        self._rank, self._num_ranks = dist.get_rank(), dist.get_world_size()
        self._group = dist.new_group(timeout=timedelta(seconds=settings.timeout_s))
        self._task = settings.load_task()
        self._order = Order(len(self._task.train), settings.batch_size, self._rank, self._num_ranks, settings.seed)
        self._num_steps = settings.num_steps(self._order.steps_per_epoch)
        _check_same_work(self._task, self._num_steps)
        torch.manual_seed(settings.seed)
        self._model = build_model(settings.chosen_model, self._task)
        self._optimizer = make_optimizer(settings, self._model)
        self._method: Method = make_method(settings, self._model, self._optimizer, self._group)
        self._first, time_s = self._resume()
        self._stop = Stop(asked_to_stop, store, self._first)
        self._recorder = Recorder(
            folder,
            self._method.handle,
            self._about(about),
            listener=listener,
            begin_at=(self._first, time_s) if self._first else None,
        )
        self._board = self._make_board()
        self._told: Reading = read(self._method.handle)
        self._told_at = (self._first, time_s)

    def run(self) -> str:
        """Train to the end, or until somebody wants it to stop; return "finished" or "stopped"."""
        try:
            reason = self._train()
        except BaseException as error:
            self._recorder.close(reason="failed", error=f"{type(error).__name__}: {error}")
            raise
        self._recorder.close(reason=reason)
        return reason

    def close(self) -> None:
        """Close what was opened, when all ranks have come to the end."""
        self._stop.close()
        if self._method.shares_model:
            dist.barrier(group=self._group)
        self._method.close()
        if self._board is not None:
            self._board.close()

    def _train(self) -> str:
        control = Control()
        reason = "finished"
        self._recorder.resume()
        for step in range(self._first, self._num_steps):
            control.step(step)
            loss = self._step(step)
            self._recorder.step(loss=loss, lr=self._lr)
            if self._board is not None:
                self._board.step(step + 1, loss=loss)
            is_end = step + 1 == self._num_steps
            if self._stop.is_last(step) and not is_end:
                reason = "stopped"
                self._tell_of_ranks()
                break
            self._look_up(step + 1, is_end=is_end)
        self._save()
        return reason

    @property
    def _lr(self) -> float:
        return float(self._optimizer.param_groups[0]["lr"])

    def _step(self, step: int) -> float:
        factor = lr_factor(self._settings.schedule, step, self._num_steps, self._settings.warmup_steps)
        for group in self._optimizer.param_groups:
            group["lr"] = factor * self._settings.chosen_lr
        chosen = self._order.batch(step)
        inputs, targets = self._task.train.inputs[chosen], self._task.train.targets[chosen]
        self._optimizer.zero_grad()
        loss: Tensor = loss_of(self._method.module(inputs), targets)
        loss.backward()  # type: ignore[no-untyped-call]
        self._method.update()
        return loss.item()

    def _look_up(self, num_done: int, *, is_end: bool) -> None:
        """Evaluate and save, when it is time to; the training clock stands still."""
        self._recorder.pause()
        if is_end or num_done % self._settings.eval_every == 0:
            self._evaluate()
            self._tell_of_ranks()
        every = self._settings.checkpoint_every
        if every and num_done % every == 0 and not is_end:
            self._save()
        self._recorder.resume()

    def _evaluate(self) -> None:
        """Test the model. Where ranks have models of their own, rank 0 tests the average, and needs nobody for that."""
        group = self._group if self._method.shares_model else None
        try:
            with self._method.evaluating():
                if group is None and self._rank != 0:
                    return
                found = evaluate(self._model, self._task.test, self._settings.eval_samples, group=group)
        except PeerLost as error:
            if self._method.shares_model:
                raise
            self._recorder.note("notice", text=f"no evaluation: {error}")
            return
        self._recorder.note("evaluation", **vars(found))
        if self._board is not None:
            self._board.step(self._recorder.step_number, test_loss=found.loss, accuracy=found.accuracy)

    def _tell_of_ranks(self) -> None:
        """Gather where every rank's time went since the last time; gossip goes on without ranks, so it does not."""
        if not self._method.shares_model:
            return
        now = read(self._method.handle)
        own = [getattr(now, name) - getattr(self._told, name) for name in _PER_RANK]
        step, time_s = self._told_at
        own.append(self._recorder.time_s - time_s)
        self._told, self._told_at = now, (self._recorder.step_number, self._recorder.time_s)
        values = torch.tensor(own, dtype=torch.float64)
        rows = [torch.empty_like(values) for _ in range(self._num_ranks)]
        dist.all_gather(rows, values, group=self._group)
        by_name = dict(zip((*_PER_RANK, "step_s"), torch.stack(rows).T.tolist(), strict=True))
        self._recorder.note("ranks", num_steps=self._recorder.step_number - step, **by_name)

    def _save(self) -> None:
        step = self._recorder.step_number
        state = {
            "step": step,
            "time_s": self._recorder.time_s,
            "model": self._model.state_dict(),
            "method": self._method.state_dict(),
            "random": torch.get_rng_state(),
        }
        folder = checkpoints.save(self._folder, step, state)
        self._recorder.note("checkpoint", path=str(folder.relative_to(self._folder)))

    def _resume(self) -> tuple[int, float]:
        """Take the latest checkpoint over, if there is one; return the step and the training time to go on from."""
        step = checkpoints.latest_common_step(self._folder)
        checkpoints.remove_after(self._folder, step or 0)
        if step is None:
            return 0, 0.0
        state = checkpoints.load(self._folder, step)
        self._model.load_state_dict(state["model"])
        self._method.load_state_dict(state["method"])
        torch.set_rng_state(state["random"])
        return step, float(state["time_s"])

    def _make_board(self) -> TensorBoard | None:
        if not self._settings.tensorboard or self._rank != 0:
            return None
        return TensorBoard(self._method.handle, self._folder / "tensorboard")

    def _about(self, about: Mapping[str, Any]) -> dict[str, Any]:
        return {
            **about,
            "workload": self._settings.workload,
            "task": self._task.name,
            "model": self._settings.chosen_model,
            "method": self._settings.method,
            "num_ranks": self._num_ranks,
            "num_parameters": sum(parameter.numel() for parameter in self._model.parameters()),
            "num_steps": self._num_steps,
            "steps_per_epoch": self._order.steps_per_epoch,
            "batch_size": self._settings.batch_size,
            "torch": torch.__version__,
        }


def _check_same_work(task: Task, num_steps: int) -> None:
    """Find out now if ranks have other data: they would train on, or wait for each other, to no end."""
    content = zlib.crc32(task.train.inputs[:: max(1, len(task.train) // 64)].numpy().tobytes())
    own = torch.tensor([len(task.train), content, num_steps])
    rows = [torch.empty_like(own) for _ in range(dist.get_world_size())]
    dist.all_gather(rows, own)
    odd = [rank for rank, row in enumerate(rows) if not row.equal(rows[0])]
    if odd:
        raise ValueError(f"ranks {odd} have other data than rank 0: give the same --data to all")
