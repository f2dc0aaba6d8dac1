"""Torch's process group, started from the environment so that a later process can have it too."""

from __future__ import annotations

import os

import pytest
import torch.distributed as dist
from torch.distributed.distributed_c10d import _get_process_group_store

from headway.elastic import init_process_group
from tests.launching import free_port


@pytest.fixture
def environment(monkeypatch):
    variables = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    for name in ("TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_USE_AGENT_STORE"):
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


@pytest.mark.parametrize("name", ["RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"])
def test_a_variable_that_is_missing_or_wrong_is_named(environment, name):
    wrong = [""] if name == "MASTER_ADDR" else ["", "two"]
    for value in wrong:
        environment.setenv(name, value)
        with pytest.raises(ValueError, match=f"{name} is '{value}' in the environment: start with torchrun, or set"):
            init_process_group()
    assert not dist.is_initialized()


@pytest.mark.parametrize("before", [None, "0"])
def test_other_groups_connect_as_usual(environment, before):
    if before is not None:
        environment.setenv("TORCH_GLOO_LAZY_INIT", before)
    init_process_group()
    try:
        assert (dist.get_rank(), dist.get_world_size(), dist.get_backend()) == (0, 1, "gloo")
        assert os.environ.get("TORCH_GLOO_LAZY_INIT") == before
    finally:
        dist.destroy_process_group()


def test_a_restart_has_keys_of_its_own(environment):
    server = dist.TCPStore("127.0.0.1", int(os.environ["MASTER_PORT"]), is_master=True, wait_for_workers=False)
    environment.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
    for attempt in ("0", "1"):
        environment.setenv("TORCHELASTIC_RESTART_COUNT", attempt)
        init_process_group()
        try:
            store = _get_process_group_store(dist.group.WORLD)
            assert not store.check(["key"])
            store.set("key", attempt)
        finally:
            dist.destroy_process_group()
    del server
