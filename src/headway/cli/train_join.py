"""``headway train`` on ranks that somebody else has started: torchrun, ``headway emulate``, a batch system."""

from __future__ import annotations

import json
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from headway.cli.train_flow import title_of
from headway.cli.train_screen import TrainScreen
from headway.report import Run, read_run
from headway.report.events import CONFIG_FILE
from headway.train.run_folder import JOINED, check_unfinished, make_folder, open_folder, settings_of
from headway.train.settings import Settings
from headway.train.worker import join, work


def train_as_rank(settings: Settings, folder: Path, *, resume: bool, steps: int | None) -> tuple[Run | None, str]:
    """Train as one rank; return the run, at rank 0, and how it ended.

    Rank 0 chooses settings and folder for all. On machines that share no files, each has a folder of that name, with
    the configuration and the checkpoints of its ranks.

    Raises:
        ValueError: What is asked for cannot be; the same on all ranks.
    """
    store = join()
    settings, folder = _agree(settings, folder, resume=resume, steps=steps)
    num_ranks = dist.get_world_size()
    if not (folder / CONFIG_FILE).exists():  # this machine does not share files with rank 0
        make_folder(folder, settings, _surroundings(num_ranks), replace=True)
    with ExitStack() as stack:
        if dist.get_rank() != 0:
            return None, work(settings, folder, JOINED, store)
        screen = stack.enter_context(TrainScreen(title_of(settings, num_ranks, JOINED)))
        reason = work(settings, folder, JOINED, store, screen.show)
    return read_run(folder), reason


def _agree(settings: Settings, folder: Path, *, resume: bool, steps: int | None) -> tuple[Settings, Path]:
    """Let rank 0 make or open the folder, and tell all what came of it."""
    verdict: dict[str, Any] = {"folder": str(folder)}
    if dist.get_rank() == 0:
        try:
            chosen = _settings_of(folder, steps) if resume else settings
            make_folder(folder, chosen, _surroundings(dist.get_world_size()), replace=resume)
            verdict["settings"] = chosen.as_dict()
        except (ValueError, OSError) as error:
            verdict["error"] = str(error)
    verdict = json.loads(broadcast_text(json.dumps(verdict)))
    if "error" in verdict:
        raise ValueError(verdict["error"])
    return Settings.from_dict(verdict["settings"]), Path(verdict["folder"])


def _settings_of(folder: Path, steps: int | None) -> Settings:
    """Return the settings of a run to go on with."""
    config = open_folder(folder)
    num_ranks = dist.get_world_size()
    if config["workers"] != num_ranks:
        raise ValueError(f"{folder} is a run of {config['workers']} workers, but here are {num_ranks}: start as many")
    if config["network"] != JOINED:
        raise ValueError(f"{folder} was made by headway train itself: go on without a launcher")
    settings = settings_of(config, folder / CONFIG_FILE)
    settings = settings if steps is None else replace(settings, steps=steps)
    check_unfinished(folder, settings)
    return settings


def _surroundings(num_ranks: int) -> dict[str, Any]:
    return {"workers": num_ranks, "network": JOINED, "network_options": {}}


def broadcast_text(text: str) -> str:
    """Return the text of rank 0."""
    content = text.encode()
    length = torch.tensor([len(content)])
    dist.broadcast(length, 0)
    buffer = torch.zeros(int(length), dtype=torch.uint8)
    if dist.get_rank() == 0:
        buffer = torch.frombuffer(bytearray(content), dtype=torch.uint8)
    dist.broadcast(buffer, 0)
    return bytes(buffer.tolist()).decode()
