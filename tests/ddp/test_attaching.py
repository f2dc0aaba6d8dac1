"""What `headway.attach` does with models and configurations, and what it says to wrong ones."""

from __future__ import annotations

import json
import time
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist

import headway
from headway.network import Calibration, calibrate
from headway.tuner import building
from tests.ddp.training import LINK, bits, fixed, mlp, parameters_of, step_once, wrap

pytestmark = pytest.mark.pool


def attach_plainly(journal: str) -> dict:
    ddp = wrap(mlp())
    handle = headway.attach(ddp, headway.Adaptive(journal=journal, timeout_s=30, interval=5))
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05)
    losses = [step_once(ddp, optimizer, step) for step in range(30)]
    seen = {
        "plan": handle.plan,
        "history": [(decision.step, decision.plan, decision.cause) for decision in handle.history],
        "network": handle.network,
        "losses": losses,
        "parameters": bits(parameters_of(ddp)),
    }
    handle.close()
    return seen


def test_attach_alone_is_adaptive_and_keeps_a_journal(pool, tmp_path):
    journal = tmp_path / "decisions.jsonl"
    first, second = pool.run(attach_plainly, str(journal), num_ranks=2)
    for name in ("plan", "history", "network", "parameters"):
        assert first[name] == second[name], name
    assert first["history"][0][2] == "start"
    assert np.mean(first["losses"][-5:]) < np.mean(first["losses"][:5])
    lines = [json.loads(line) for line in journal.read_text().splitlines()]
    assert [line["step"] for line in lines] == [step for step, *_ in first["history"]]


def default_config() -> str:
    state = headway.HookState()
    kind = type(state.config).__name__
    state.close()
    return kind


def test_the_hook_state_is_adaptive_by_default(pool):
    assert pool.run(default_config, num_ranks=1) == ["Adaptive"]


def message_of(config: headway.Fixed | headway.Adaptive) -> str:
    try:
        headway.attach(wrap(mlp()), config)
    except ValueError as error:
        return str(error)
    return "nothing was said"


def disagree(name: str, values: list) -> list[str]:
    """Return what is said where ranks have different values of an option: for a fixed plan, and for adaptive ones."""
    option = {name: values[dist.get_rank()]}
    said = [message_of(fixed(**{"exchange": "allgather_topk", **option}))]
    if name == "interval":
        said.append(message_of(headway.Adaptive(interval=3 + dist.get_rank(), timeout_s=20)))
    return said


@pytest.mark.parametrize(("name", "values"), [("ratio", [0.1, 0.2]), ("interval", [0, 3]), ("link", [LINK, None])])
def test_ranks_with_different_configurations_are_told(pool, name, values):
    said = "ranks [1] have another configuration than rank 0: give the same to all"
    for rank in pool.run(disagree, name, values, num_ranks=2):
        assert rank == [said] * (1 + (name == "interval"))


def attach_with_journals(paths: list[str]) -> list[str]:
    return [message_of(headway.Adaptive(journal=path, timeout_s=20)) for path in paths]


def test_a_journal_that_cannot_be_written_is_told_to_all(pool, tmp_path):
    (tmp_path / "file").write_text("")
    places = [str(tmp_path / "file/journal"), str(tmp_path)]
    for first, second in zip(*pool.run(attach_with_journals, places, num_ranks=2), strict=True):
        assert first.startswith("rank 0 cannot write its journal: ")
        assert second.startswith("rank 0 cannot write its journal")


def misuse() -> list[str]:
    ddp = wrap(mlp())
    headway.attach(ddp, fixed()).close()
    said = []
    for model, config in ((mlp(), None), (ddp, None), (wrap(mlp()), "star_topk")):
        try:
            headway.attach(model, config)
        except ValueError as error:
            said.append(str(error))
    return said


def test_wrong_use_says_what_to_do(pool):
    bare, twice, config = pool.run(misuse, num_ranks=1)[0]
    assert bare == "attach takes a DistributedDataParallel model, not Sequential: wrap the model first, then attach"
    assert twice.startswith("this model has a communication hook, and DDP takes one for life")
    assert config == "config is a str, but must be a headway.Adaptive(...) or headway.Fixed(...)"


def count_open() -> tuple[int, int]:
    """Return how many files and how many threads this process has open, those of torch included."""
    return len(list(Path("/proc/self/fd").iterdir())), len(list(Path("/proc/self/task").iterdir()))


def count_open_once_settled(expected: tuple[int, int] | None) -> tuple[int, int]:
    """Count, until the counts are as expected or it takes too long: threads of torch take a moment to end."""
    end = time.monotonic() + 10
    while (counted := count_open()) != expected and expected is not None and time.monotonic() < end:
        time.sleep(0.01)
    return counted


def attach_and_close(num_cycles: int) -> list[tuple[int, int]]:
    """Train and close again and again; keep models and handles, as a notebook would."""
    building.calibrate = lambda executor: Calibration(link=LINK)  # measuring takes longer than all the rest
    kept, counts = [], []
    for _ in range(num_cycles):
        ddp = wrap(mlp())
        handle = headway.attach(ddp, headway.Fixed(exchange="dense", algorithm="ring", fusion="bucket", interval=1))
        for step in range(4):
            step_once(ddp, torch.optim.SGD(ddp.parameters(), lr=0.05), step)
        handle.close()
        kept.append((ddp, handle))
        counts.append(count_open_once_settled(counts[-1] if len(counts) > 1 else None))
    building.calibrate = calibrate
    return counts


def test_what_is_closed_leaves_no_files_or_threads_behind(pool):
    for counts in pool.run(attach_and_close, 12, num_ranks=2):
        assert counts[2:] == [counts[1]] * 10
