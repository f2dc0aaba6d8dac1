"""Do the bits change? Hashes of the parameters after 30 steps, for every exchange and every gossip algorithm.

Record them before a change that must not alter results, and compare after it, on the same machine:

    python benchmarks/parameter_hashes.py --record /tmp/before.json
    python benchmarks/parameter_hashes.py --compare /tmp/before.json
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

NUM_RANKS = (1, 2, 3, 4, 5)
NUM_STEPS = 30
GATHERED, SUMMED = ("fp32", "fp16", "int8", "int4", "sign"), ("fp32", "fp16")
EXCHANGES = {
    "dense": SUMMED,
    "allgather_topk": GATHERED,
    "star_topk": SUMMED,
    "var_topk": SUMMED,
    "layerwise_topk": GATHERED,
    "mstopk": GATHERED,
    "randomk": SUMMED,
    "quantized": ("fp32",),
}


def hook_cases() -> Iterator[dict[str, Any]]:
    """Yield the arguments of `headway.Fixed`."""
    for exchange, formats in EXCHANGES.items():
        for values in formats:
            for fusion in ("bucket", "step"):
                yield {"exchange": exchange, "values": values, "fusion": fusion, "ratio": 0.05}
    yield {"exchange": "quantized", "bits": 4}
    yield {"exchange": "star_topk", "ratio": 0.05, "algorithm": "ring", "broadcast": "tree", "fusion": "bucket"}
    yield {"exchange": "allgather_topk", "ratio": 0.05, "algorithm": "native", "fusion": "auto"}
    followed = {"link": None, "interval": 3, "algorithm": "ring", "broadcast": "tree"}  # control rounds, measured steps
    yield {"exchange": "star_topk", "ratio": 0.05, "fusion": "bucket", **followed}
    yield {"exchange": "dense", "fusion": "bucket", **followed, "algorithm": "native"}


def gossip_cases() -> Iterator[dict[str, Any]]:
    """Yield the arguments of `headway.gossip.wrap`; a compressor is named with its arguments."""
    for algorithm in ("dpsgd", "naive", "dcd", "ecd", "choco"):
        for memory in ("lean", "resilient"):
            yield {"algorithm": algorithm, "memory": memory}
    yield {"algorithm": "dcd", "topology": "complete", "local_steps": 3}
    yield {"algorithm": "dcd", "compressor": ("RandomK", {"ratio": 0.5})}
    yield {"algorithm": "choco", "compressor": ("TopK", {"ratio": 0.1})}
    yield {"algorithm": "choco", "compressor": ("Sign", {})}


def train_with_hook(case: dict[str, Any]) -> str:
    """Return the hash after training with a fixed plan."""
    import torch
    from torch.nn.parallel import DistributedDataParallel

    import headway

    ddp = DistributedDataParallel(_model(), bucket_cap_mb=0.001)
    link = headway.Link(latency_s=0.001, bandwidth_bps=1e8)
    handle = headway.attach(ddp, headway.Fixed(**{"link": link, "timeout_s": 60, **case}))
    _train(ddp, torch.optim.SGD(ddp.parameters(), lr=0.05, momentum=0.9))
    handle.close()
    return _hash(ddp)


def train_with_gossip(case: dict[str, Any]) -> str:
    """Return the hash after training with gossip."""
    import torch

    import headway

    options = dict(case)
    if "compressor" in options:
        name, arguments = options["compressor"]
        options["compressor"] = getattr(headway.compress, name)(**arguments)
    model = _model()
    inner = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    optimizer = headway.gossip.wrap(model, inner, timeout_s=60, **options)
    _train(model, optimizer)
    optimizer.average_()
    optimizer.close()
    return _hash(model)


def _model():
    import torch
    from torch import nn

    torch.manual_seed(1)
    layers = [nn.Linear(20, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 5)]
    return nn.Sequential(*layers)


def _train(model, optimizer) -> None:
    import torch
    import torch.distributed as dist
    from torch import nn

    for step in range(NUM_STEPS):
        generator = torch.Generator().manual_seed(1000 * dist.get_rank() + step)
        inputs = torch.randn(8, 20, generator=generator)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), inputs[:, :5].argmax(dim=1)).backward()
        optimizer.step()


def _hash(model) -> str:
    """Return a hash of the parameters of all ranks, as rank 0 sees them."""
    import torch
    import torch.distributed as dist

    own = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    rows = [torch.empty_like(own) for _ in range(dist.get_world_size())]
    dist.all_gather(rows, own)
    return hashlib.sha256(torch.stack(rows).numpy().tobytes()).hexdigest()[:16]


def work(only: str) -> None:
    """Be a rank: train the cases that contain a text; rank 0 prints a line of JSON for each."""
    import warnings

    import torch
    import torch.distributed as dist

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    cases = [("hook", case, train_with_hook) for case in hook_cases()]
    cases += [("gossip", case, train_with_gossip) for case in gossip_cases()]
    for kind, case, train in cases:
        name = f"{kind} {json.dumps(case, sort_keys=True)}, {dist.get_world_size()} ranks"
        if only not in name:
            continue
        found = train(case)
        if dist.get_rank() == 0:
            print(json.dumps([name, found]), flush=True)
    dist.barrier()
    os._exit(0)


def collect(only: str) -> dict[str, str]:
    """Return the hash of every case that contains a text, with every number of ranks."""
    from headway.lab import run_on_loopback

    found: dict[str, str] = {}
    for num_ranks in NUM_RANKS:
        lines: list[str] = []
        command = [sys.executable, __file__, "--work", "--only", only]
        outcome = run_on_loopback(num_ranks, command, output=lambda _, line, to=lines: to.append(line), timeout_s=900)
        if outcome.exit_code:
            raise RuntimeError(f"{num_ranks} ranks failed: {lines[-20:]}")
        found |= dict(json.loads(line) for line in lines if line.startswith("["))
        typer.echo(f"{num_ranks} ranks: {len(found)} hashes so far", err=True)
    return found


def main(
    record: Annotated[Path | None, typer.Option(help="Write the hashes to this file.")] = None,
    compare: Annotated[Path | None, typer.Option(help="Compare with the hashes in this file.")] = None,
    only: Annotated[str, typer.Option(help="Only cases whose names contain this text.")] = "",
    as_rank: Annotated[bool, typer.Option("--work", hidden=True)] = False,
) -> None:
    """Record or compare hashes; the exit code is 1 if any differs."""
    if as_rank:
        work(only)
    found = collect(only)
    if record is not None:
        record.write_text(json.dumps(found, indent=1) + "\n")
    if compare is not None:
        before = json.loads(compare.read_text())
        before = {name: hash_ for name, hash_ in before.items() if only in name}
        changed = sorted(name for name in before if found.get(name) != before[name])
        for name in changed:
            typer.echo(f"changed: {name}")
        typer.echo(f"{len(before) - len(changed)} of {len(before)} hashes are the same")
        raise typer.Exit(1 if changed else 0)


if __name__ == "__main__":
    typer.run(main)
