"""One rank of a run: a worker that ``headway train`` starts, or one that a launcher such as torchrun starts."""

from __future__ import annotations

import json
import os
import sys
import traceback
from datetime import timedelta
from pathlib import Path
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import Store
from torch.distributed.rendezvous import rendezvous

from headway._plugins import load_plugins
from headway.errors import HeadwayError
from headway.report import Run, read_run
from headway.report.events import CONFIG_FILE, Listener
from headway.report.run import read_config
from headway.train.progress import OpenScreen
from headway.train.run_folder import JOINED, check_unfinished, make_folder, open_folder, settings_of
from headway.train.settings import TrainSettings
from headway.train.stopping import stop_on_signals
from headway.train.trainer import Trainer

FAILURES = (HeadwayError, ValueError, RuntimeError, OSError)
"""Errors that a rank reports in one sentence: its own, or the loss of other ranks."""
STOPPED = 130
"""Exit code of a rank that was stopped by a signal."""
_RENDEZVOUS_TIMEOUT = timedelta(minutes=5)
_DEBUG = "HEADWAY_DEBUG"

START = (
    "import signal; signal.signal(signal.SIGINT, signal.SIG_DFL); "  # before the rendezvous there is nothing to save
    "from headway.train.worker import main; main()"
)
"""Code of a worker's process, whose argument is the run directory."""


def main() -> None:
    """Train as the configuration in a run directory says."""
    torch.set_num_threads(1)  # workers share the machine
    folder = Path(sys.argv[1])
    config = read_config(folder)
    try:
        load_plugins()
        store = _join()
        reason = _train(TrainSettings.from_dict(config), folder, config["network"], store)
    except FAILURES as error:
        print(f"headway train: {explain(error)}", file=sys.stderr)
        leave(1)
    leave(STOPPED if reason == "stopped" else 0)


def train_as_rank(
    settings: TrainSettings, folder: Path, open_screen: OpenScreen, *, resume: bool
) -> tuple[Run | None, str]:
    """Train as a rank that a launcher started; return the run, at rank 0, and "finished" or "stopped".

    Rank 0 chooses settings and folder for all. On machines that share no files, each has a folder of that name, with
    the configuration and the checkpoints of its ranks.

    Args:
        settings: What to do; with ``resume`` only its number of steps counts.
        folder: The run directory.
        open_screen: Makes the screen of rank 0.
        resume: Whether to continue the run in the folder.

    Raises:
        ValueError: The request is impossible; the same on all ranks.
    """
    store = _join()
    settings, folder = _agree(settings, folder, resume=resume)
    num_ranks = dist.get_world_size()
    if not (folder / CONFIG_FILE).exists():  # this machine does not share files with rank 0
        make_folder(folder, settings, _surroundings(num_ranks), replace=True)
    if dist.get_rank() != 0:
        return None, _train(settings, folder, JOINED, store)
    with open_screen(settings.title(num_ranks, JOINED)) as screen:
        reason = _train(settings, folder, JOINED, store, screen.show)
    return read_run(folder), reason


def explain(error: BaseException) -> str:
    """Return the cause of this rank's failure in one sentence."""
    if os.environ.get(_DEBUG):
        traceback.print_exc()
    first = (str(error).strip() or type(error).__name__).splitlines()[0]
    hint = f"; {_DEBUG}=1 shows where" if isinstance(error, RuntimeError) else ""
    return f"rank {os.environ['RANK']}: {first}{hint}"


def leave(code: int) -> NoReturn:
    """End at once: torch aborts where a process group outlives the interpreter."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _join() -> Store:
    """Join the process group of the environment; return its store."""
    store: Store
    store, rank, num_ranks = next(iter(rendezvous("env://", timeout=_RENDEZVOUS_TIMEOUT)))
    store.set_timeout(_RENDEZVOUS_TIMEOUT)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=num_ranks, timeout=_RENDEZVOUS_TIMEOUT)
    return store


def _train(
    settings: TrainSettings, folder: Path, network: str, store: Store, listener: Listener = lambda event: None
) -> str:
    trainer = Trainer(settings, folder, {"network": network}, stop_on_signals(), store, listener)
    reason = trainer.run()
    trainer.close()
    return reason


def _agree(settings: TrainSettings, folder: Path, *, resume: bool) -> tuple[TrainSettings, Path]:
    """Let rank 0 make or open the folder, and return its settings and folder, or raise its error, on all ranks."""
    answer: dict[str, Any] = {"folder": str(folder)}
    if dist.get_rank() == 0:
        try:
            chosen = _settings_to_resume(folder, settings.steps) if resume else settings
            make_folder(folder, chosen, _surroundings(dist.get_world_size()), replace=resume)
            answer["settings"] = chosen.as_dict()
        except (ValueError, OSError) as error:
            answer["error"] = str(error)
    answer = json.loads(_broadcast_text(json.dumps(answer)))
    if "error" in answer:
        raise ValueError(answer["error"])
    return TrainSettings.from_dict(answer["settings"]), Path(answer["folder"])


def _settings_to_resume(folder: Path, steps: int | None) -> TrainSettings:
    config = open_folder(folder)
    num_ranks = dist.get_world_size()
    if config["workers"] != num_ranks:
        raise ValueError(f"{folder} is a run of {config['workers']} workers, but here are {num_ranks}: start as many")
    if config["network"] != JOINED:
        raise ValueError(f"{folder} was made by headway train itself: resume it without a launcher")
    settings = settings_of(config, folder / CONFIG_FILE, steps)
    check_unfinished(folder, settings)
    return settings


def _surroundings(num_ranks: int) -> dict[str, Any]:
    return {"workers": num_ranks, "network": JOINED, "network_options": {}}


def _broadcast_text(text: str) -> str:
    """Return the text of rank 0."""
    content = text.encode()
    length = torch.tensor([len(content)])
    dist.broadcast(length, 0)
    buffer = torch.zeros(int(length), dtype=torch.uint8)
    if dist.get_rank() == 0:
        buffer = torch.frombuffer(bytearray(content), dtype=torch.uint8)
    dist.broadcast(buffer, 0)
    return bytes(buffer.tolist()).decode()
