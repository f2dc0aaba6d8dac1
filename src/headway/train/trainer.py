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
from headway.train.methods import Method, make_method
from headway.train.models import build_model
from headway.train.optimizers import lr_factor, make_optimizer
from headway.train.samples import BatchOrder, Task
from headway.train.settings import TrainSettings
from headway.train.stopping import Stop

_PER_RANK = ("compress_s", "wait_s", "transfer_s")


class Trainer:
    """Trains as the settings say, and writes a run directory. Every rank makes one, in a process group.

    Training resumes from the latest checkpoint that all ranks have, if there is one.

    Args:
        settings: The settings of the run.
        folder: The run directory.
        about: Fields of the event "start" in addition to those from the settings.
        asked_to_stop: Event that asks this rank to stop; all ranks end after the same step, and save a checkpoint.
        store: Store of the process group, through which a rank that is asked to stop informs the others.
        listener: Called with every event, on rank 0.
    """

    def __init__(
        self,
        settings: TrainSettings,
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
        self._order = BatchOrder(len(self._task.train), settings.batch_size, self._rank, self._num_ranks, settings.seed)
        self._num_steps = settings.num_steps(self._order.steps_per_epoch)
        _check_same_data(self._task, self._num_steps)
        torch.manual_seed(settings.seed)
        self._model = build_model(settings.chosen_model, self._task)
        self._optimizer = make_optimizer(
            settings.chosen_optimizer, self._model, settings.chosen_lr, settings.weight_decay
        )
        self._method: Method = make_method(settings, self._model, self._optimizer, self._group)
        self._first, time_s = self._restore()
        self._stop = Stop(asked_to_stop, store, self._first)
        self._recorder = Recorder(
            folder,
            self._method.handle,
            self._about(about),
            listener=listener,
            begin_at=(self._first, time_s) if self._first else None,
        )
        self._board = self._make_board()
        self._last_reading: Reading = read(self._method.handle)
        self._last_reading_at = (self._first, time_s)

    def run(self) -> str:
        """Train until the last step, or until a rank is asked to stop; return "finished" or "stopped"."""
        try:
            reason = self._train()
        except BaseException as error:
            self._recorder.close(reason="failed", error=f"{type(error).__name__}: {error}")
            raise
        self._recorder.close(reason=reason)
        return reason

    def close(self) -> None:
        """Release threads and connections, when all ranks have ended."""
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
            is_end = step + 1 == self._num_steps
            if is_end:
                self._method.finish()  # counts as training
            self._recorder.step(loss=loss, lr=self._lr)
            if self._board is not None:
                self._board.step(step + 1, loss=loss)
            if self._stop.is_last(step) and not is_end:
                reason = "stopped"
                self._record_ranks()
                break
            self._evaluate_and_save(step + 1, is_end=is_end)
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

    def _evaluate_and_save(self, num_done: int, *, is_end: bool) -> None:
        """Evaluate and save, if this step is due for it; the training clock is paused."""
        self._recorder.pause()
        if is_end or num_done % self._settings.eval_every == 0:
            self._evaluate()
            self._record_ranks()
        every = self._settings.checkpoint_every
        if every and num_done % every == 0 and not is_end:
            self._save()
        self._recorder.resume()

    def _evaluate(self) -> None:
        """Evaluate the model. Under gossip, rank 0 alone evaluates the average of all models."""
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

    def _record_ranks(self) -> None:
        """Record where every rank's time went since the last call; not under gossip, which may have lost ranks."""
        if not self._method.shares_model:
            return
        now = read(self._method.handle)
        own = [getattr(now, name) - getattr(self._last_reading, name) for name in _PER_RANK]
        step, time_s = self._last_reading_at
        own.append(self._recorder.time_s - time_s)
        self._last_reading, self._last_reading_at = now, (self._recorder.step_number, self._recorder.time_s)
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

    def _restore(self) -> tuple[int, float]:
        """Load the latest checkpoint, if there is one; return the step and the training time to continue from."""
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


def _check_same_data(task: Task, num_steps: int) -> None:
    """Raise `ValueError` if ranks have different data or steps: training would be wrong, or never end."""
    content = zlib.crc32(task.train.inputs[:: max(1, len(task.train) // 64)].numpy().tobytes())
    own = torch.tensor([len(task.train), content, num_steps])
    rows = [torch.empty_like(own) for _ in range(dist.get_world_size())]
    dist.all_gather(rows, own)
    different = [rank for rank, row in enumerate(rows) if not row.equal(rows[0])]
    if different:
        raise ValueError(f"ranks {different} have other data than rank 0: give the same --data to all")
