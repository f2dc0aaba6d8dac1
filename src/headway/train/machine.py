"""Can this machine do it?"""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

from headway.gossip import topology_of
from headway.train.order import Order
from headway.train.settings import Settings

_WORKER_BYTES = 400e6
"""What a worker of a small model needs, torch included, beside its data."""
_COPIES = 3
"""Of the data, while it is made ready."""


def check_machine(num_workers: int, settings: Settings) -> None:
    """Raise `ValueError` if the machine cannot hold so many workers, or they cannot do this."""
    if num_workers < 1:
        raise ValueError(f"the number of workers is {num_workers}, but must be 1 or more")
    if settings.tensorboard and importlib.util.find_spec("tensorboard") is None:
        raise ValueError("tensorboard is not installed: pip install 'headway[tensorboard]'")
    if settings.gossip_algorithm is not None:
        topology_of(settings.topology, num_workers)
    task = settings.load_task()
    parts = (task.train.inputs, task.train.targets, task.test.inputs, task.test.targets)
    each_bytes = _WORKER_BYTES + _COPIES * sum(part.numel() * part.element_size() for part in parts)
    most = max(1, int(free_bytes() / each_bytes))
    if num_workers > most:
        raise ValueError(
            f"{num_workers} workers are too many for this machine: each needs {each_bytes / 1e6:.0f} MB, and "
            f"{free_bytes() / 1e9:.1f} GB are free; use at most {most}"
        )
    Order(len(task.train), settings.batch_size, 0, num_workers, settings.seed)  # refuses too few samples


def free_bytes() -> float:
    """Return how much memory can be had without swapping."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return 1024.0 * int(line.split()[1])
    return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES"))
