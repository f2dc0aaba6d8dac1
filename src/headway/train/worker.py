"""One worker of a run: what ``headway train`` starts on every host, and what torchrun starts instead of it."""

from __future__ import annotations

import os
import sys
import traceback
from datetime import timedelta
from pathlib import Path
from typing import NoReturn

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import Store
from torch.distributed.rendezvous import rendezvous

from headway.errors import HeadwayError
from headway.report.events import Listener
from headway.report.run import read_config
from headway.train.settings import Settings
from headway.train.stopping import stop_on_signals
from headway.train.trainer import Trainer

FAILURES = (HeadwayError, ValueError, RuntimeError, OSError)
"""What a rank that fails says in one sentence: its own trouble, or that it has lost the others."""
STOPPED = 130
_MEETING = timedelta(minutes=5)
_DEBUG = "HEADWAY_DEBUG"

START = (
    "import signal; signal.signal(signal.SIGINT, signal.SIG_DFL); "  # until ranks have met there is nothing to save
    "from headway.train.worker import main; main()"
)
"""What to execute, with the run directory as argument."""


def join() -> Store:
    """Join the process group of the environment; return its store."""
    store: Store
    store, rank, num_ranks = next(iter(rendezvous("env://", timeout=_MEETING)))
    store.set_timeout(_MEETING)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=num_ranks, timeout=_MEETING)
    return store


def work(settings: Settings, folder: Path, network: str, store: Store, listener: Listener = lambda event: None) -> str:
    """Train as a rank of the process group; return "finished" or "stopped"."""
    asked = stop_on_signals()
    trainer = Trainer(settings, folder, {"network": network}, asked, store, listener)
    reason = trainer.run()
    trainer.close()
    return reason


def explain(error: BaseException) -> str:
    """Return in one sentence what a rank has failed of."""
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


def main() -> None:
    """Train as the configuration in a run directory says."""
    torch.set_num_threads(1)  # workers share the machine
    folder = Path(sys.argv[1])
    config = read_config(folder)
    try:
        store = join()
        reason = work(Settings.from_dict(config), folder, config["network"], store)
    except FAILURES as error:
        print(f"headway train: {explain(error)}", file=sys.stderr)
        leave(1)
    leave(STOPPED if reason == "stopped" else 0)
