"""Debug mode: before each collective, ranks compare what they are about to do."""

from __future__ import annotations

import os

import torch
import torch.distributed as dist

from headway.collectives.groups import native_all_gather
from headway.errors import MismatchError

_TEXT_BYTES = 256


def wanted(debug: bool | None) -> bool:
    """Return whether to compare: the argument decides, and where there is none, ``HEADWAY_DEBUG=1`` does."""
    return os.environ.get("HEADWAY_DEBUG", "") not in ("", "0") if debug is None else debug


def check_debug(compares: bool, group: dist.ProcessGroup, num_ranks: int) -> None:
    """Raise `ValueError` if some ranks compare and others do not: they would wait for each other."""
    everyone = torch.empty(num_ranks, dtype=torch.uint8)
    native_all_gather(everyone, torch.tensor([compares], dtype=torch.uint8), group)
    if int(everyone.sum()) not in (0, num_ranks):
        ranks = torch.nonzero(everyone).flatten().tolist()
        raise ValueError(f"debug mode is on for ranks {ranks} only: set HEADWAY_DEBUG or debug= alike on all ranks")


def compare(intent: str, group: dist.ProcessGroup, num_ranks: int) -> None:
    """Gather every rank's intent; raise `MismatchError` with all of them unless they are the same."""
    own = torch.zeros(_TEXT_BYTES, dtype=torch.uint8)
    text = intent.encode()[:_TEXT_BYTES]
    own[: len(text)] = torch.frombuffer(bytearray(text), dtype=torch.uint8)
    everyone = torch.empty(num_ranks * _TEXT_BYTES, dtype=torch.uint8)
    native_all_gather(everyone, own, group)
    intents = [bytes(row.tolist()).rstrip(b"\0").decode(errors="replace") for row in everyone.view(num_ranks, -1)]
    if len(set(intents)) > 1:
        raise MismatchError(intents)
