"""DiLoCo as torchft has it, with its own manager, lighthouse and process group, on the hosts of the lab.

Every rank is a replica group of one worker. Rank 0 runs the lighthouse, which all managers ask for a quorum before
every exchange, over the same network as the exchange: that is part of what torchft's DiLoCo costs.

Install it with ``pip install -c constraints.txt -e ".[bench]"``.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

OUTER_LR, OUTER_MOMENTUM = 0.7, 0.9
"""Those of the paper (arXiv 2311.08105), with Nesterov's momentum."""
PATIENCE = timedelta(seconds=600)
"""A dense all-reduce of the CNN among 8 takes 50 s at 2 Mbps."""


def why_missing() -> str | None:
    """Return why torchft cannot be used here, and what to do about it; None if it can."""
    os.environ.setdefault("RUST_LOG", "warn")  # its servers log every request
    try:
        import torchft.local_sgd  # noqa: F401
    except ImportError as error:
        return f"torchft is not here ({error}): pip install -c constraints.txt -e '.[bench]'"
    return None


class DiLoCo(torch.optim.Optimizer):
    """H local steps, then a dense all-reduce of differences and a step of the outer optimizer, by torchft.

    The model goes in one fragment and one bucket: all-reduces of single parameters, torchft's default, pay for
    latency with each. Models must be equal when it is made.
    """

    def __init__(self, model: nn.Module, inner: torch.optim.Optimizer, steps: int = 32) -> None:
        missing = why_missing()
        if missing is not None:
            raise ImportError(missing)
        from torchft import Manager, ProcessGroupGloo, local_sgd

        super().__init__(inner.param_groups, inner.defaults)
        self.inner, self.param_groups, self.state = inner, inner.param_groups, inner.state
        own_address = _own_address()
        self._lighthouse, lighthouse_address = _lighthouse()
        self._store = dist.TCPStore(own_address, 0, is_master=True, wait_for_workers=False)
        self._manager = Manager(
            pg=ProcessGroupGloo(timeout=PATIENCE),
            load_state_dict=model.load_state_dict,
            state_dict=model.state_dict,
            min_replica_size=dist.get_world_size(),
            use_async_quorum=False,
            timeout=PATIENCE,
            quorum_timeout=PATIENCE,
            connect_timeout=PATIENCE,
            rank=0,
            world_size=1,
            store_addr=own_address,
            store_port=self._store.port,
            lighthouse_addr=lighthouse_address,
            replica_id=f"worker_{dist.get_rank()}",
            hostname=own_address,
            init_sync=False,
            max_retries=0,  # an exchange that fails must not pass for a fast one
        )
        outer = torch.optim.SGD(model.parameters(), lr=OUTER_LR, momentum=OUTER_MOMENTUM, nesterov=True)
        self._diloco = local_sgd.DiLoCo(self._manager, [model], inner, outer, steps, use_bucketization=True)
        self._diloco.__enter__()
        self._manager.start_quorum()  # it connects the ranks, which others also do before their first step

    def step(self, closure: Callable[[], float] | None = None) -> Any:
        """Take a local step; torchft exchanges after every H, by a hook of the inner optimizer."""
        return self.inner.step(closure)

    @property
    def common(self) -> Tensor:
        """The model that all ranks have in common."""
        (fragment,) = self._diloco._fragments
        return torch.cat([parameter.flatten() for parameter in fragment.original_parameters.values()])

    def close(self) -> None:
        """End the servers; the lighthouse goes last. All ranks call it."""
        self._diloco.__exit__(None, None, None)
        self._manager.shutdown(wait=False)
        dist.barrier()
        if self._lighthouse is not None:
            self._lighthouse.shutdown()


def _own_address() -> str:
    """Return the address under which other ranks reach this one."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])))
        return str(probe.getsockname()[0])


def _lighthouse() -> tuple[Any, str]:
    """Return the lighthouse, at rank 0 only, and its address."""
    from torchft.coordination import LighthouseServer

    server, address = None, [""]
    if dist.get_rank() == 0:
        server = LighthouseServer(bind="[::]:0", min_replicas=dist.get_world_size())
        port = server.address().rsplit(":", 1)[1]
        address = [f"http://{_own_address()}:{port}"]
    dist.broadcast_object_list(address, 0)
    return server, address[0]
