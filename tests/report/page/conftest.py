"""The runs that most tests of the page show."""

from __future__ import annotations

import pytest

from headway.report import Run, read_run
from tests.report.sample_runs import write_adaptive, write_ddp, write_gossip


@pytest.fixture(scope="session")
def runs(tmp_path_factory) -> list[Run]:
    """An adaptive run, plain DDP, and gossip."""
    folder = tmp_path_factory.mktemp("runs")
    folders = (write_adaptive(folder / "adaptive"), write_ddp(folder / "ddp"), write_gossip(folder / "gossip"))
    return [read_run(each) for each in folders]
