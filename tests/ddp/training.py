"""What the tests of the hook run on every rank: small models, few steps, and a count of what gradients come to."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import headway
from headway import Link
from headway.exchange import EXCHANGES as REGISTERED
from headway.exchange import Controller, ExchangeRecord, GainCurves, Plan, StepPlan

LINK = Link(latency_s=0.001, bandwidth_bps=1e8)
SMALL_BUCKETS_MB = 0.001
EXCHANGES = tuple(REGISTERED)

ROUNDING = 1e-6
"""The share of a gradient that may be lost: it is exchanged in single precision."""


def mlp(width: int = 64) -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(20, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 5))


def batch(rank: int, step: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1000 * rank + step)
    inputs = torch.randn(8, 20, generator=generator)
    return inputs, inputs[:, :5].argmax(dim=1)


def loss_of(model: nn.Module, step: int) -> Tensor:
    """The loss of this rank's batch of a step."""
    inputs, targets = batch(dist.get_rank(), step)
    dtype = next(model.parameters()).dtype
    return nn.functional.cross_entropy(model(inputs.to(dtype)), targets)


def parameters_of(model: nn.Module) -> Tensor:
    return torch.cat([parameter.detach().float().flatten() for parameter in model.parameters()])


def fixed(**options: Any) -> headway.Fixed:
    return headway.Fixed(**{"link": LINK, "timeout_s": 20, **options})


def wrap(model: nn.Module, **options: Any) -> DistributedDataParallel:
    return DistributedDataParallel(model, **{"bucket_cap_mb": SMALL_BUCKETS_MB, **options})


def step_once(ddp: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> float:
    optimizer.zero_grad()
    loss = loss_of(ddp, step)
    loss.backward()
    optimizer.step()
    return loss.item()


@dataclass(frozen=True, kw_only=True)
class Interrupted:
    """Parameters after 12 steps in one go, and with a stop on the way; what was saved there, and the steps counted."""

    straight: bytes
    resumed: bytes
    saved: dict[str, Any]
    num_steps: int


def interrupt(
    make: Callable[[], tuple[DistributedDataParallel, headway.HookState, torch.optim.Optimizer]], at: int
) -> Interrupted:
    """Train 12 steps in one go, and again with a stop before a step, through a file of all states."""
    ddp, handle, optimizer = make()
    for step in range(12):
        if step == at:
            saved = _through_a_file(
                {"model": ddp.module.state_dict(), "optimizer": optimizer.state_dict(), "headway": handle.state_dict()}
            )
        step_once(ddp, optimizer, step)
    straight = bits(parameters_of(ddp))
    handle.close()
    ddp, handle, optimizer = make()
    ddp.module.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    handle.load_state_dict(saved["headway"])
    for step in range(at, 12):
        step_once(ddp, optimizer, step)
    resumed, num_steps = bits(parameters_of(ddp)), handle.statistics().step
    handle.close()
    return Interrupted(straight=straight, resumed=resumed, saved=saved, num_steps=num_steps)


def _through_a_file(state: Any) -> Any:
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


class ScriptedController:
    """A controller around another one, with scripted plans where there are any, and perhaps measured steps."""

    def __init__(
        self, inner: Controller, plan_of: Callable[[int], Plan | None], is_measured: bool | None = None
    ) -> None:
        self._inner = inner
        self._plan_of = plan_of
        self._is_measured = is_measured
        self._step = 0
        self.num_curves = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def begin_step(self, step: int) -> None:
        self._step = step
        self._inner.begin_step(step)

    @property
    def current(self) -> StepPlan:
        own = self._inner.current
        own = replace(own, plan=self._plan_of(self._step) or own.plan)
        if self._is_measured is None:
            return own
        return replace(own, is_measured=self._is_measured, takes_curves=self._is_measured)

    def observe(self, record: ExchangeRecord, curves: GainCurves | None = None) -> None:
        self.num_curves += curves is not None
        self._inner.observe(record, curves)


def follow(
    handle: headway.HookState, plan_of: Callable[[int], Plan | None], is_measured: bool | None = None
) -> ScriptedController:
    """Let a handle follow these plans, step by step, and its own where there is none: no public way is so exact."""
    averager = handle._averaging.averager
    averager._runner.controller = ScriptedController(averager._runner.controller, plan_of, is_measured)
    return averager._runner.controller


class Ledger:
    """Counts what a model's gradients come to, without DDP or Headway: nothing may be lost, entry by entry.

        sum over steps of the averages applied + mean over ranks of the residuals kept
            = sum over steps of the mean over ranks of the gradients given

    The gradients given are computed on a copy of the model that has no hooks; their mean, by plain torch.distributed.

    Args:
        ddp: The model that trains.
        handle: Its handle; None for plain DDP.
    """

    def __init__(self, ddp: DistributedDataParallel, handle: headway.HookState | None) -> None:
        self._ddp, self._handle = ddp, handle
        self._copy = copy.deepcopy(ddp.module)
        self.restart()

    def restart(self) -> None:
        """Count from now on; what is kept now is part of what is given."""
        self._given = self._kept()
        self._applied = torch.zeros_like(self._given)
        self._rounding = torch.zeros_like(self._given)

    def give(self, loss: Callable[[nn.Module], Tensor]) -> None:
        """Count this rank's gradient of a loss; before DDP's backward, with the same parameters."""
        self._copy.load_state_dict(self._ddp.module.state_dict())
        self._copy.zero_grad()
        loss(self._copy).backward()
        gradient = _gradient_of(self._copy)
        self._given += gradient
        self._rounding += self._epsilon * gradient.abs()

    def apply(self) -> None:
        """Count the average that DDP has left in the model, after its backward."""
        average = _gradient_of(self._ddp.module)
        self._applied += average
        self._rounding += self._epsilon * average.abs()

    def lost(self) -> float:
        """Return the largest share that is lost, or applied but never given, beyond rounding to the model's type.

        All ranks call it. With single precision "beyond rounding" leaves about 1e-7.
        """
        mean = torch.stack([self._given, self._kept(), self._rounding])
        dist.all_reduce(mean)
        given, kept, rounding = mean / dist.get_world_size()
        difference = (self._applied + kept - given).abs() - rounding
        return float(difference.max().clamp_min(0) / given.abs().max())

    @property
    def _epsilon(self) -> float:
        return torch.finfo(next(self._ddp.parameters()).dtype).eps

    def _kept(self) -> Tensor:
        """This rank's residual, in the order of the model's parameters; 0 if there is none."""
        sizes = {name: parameter.numel() for name, parameter in self._ddp.module.named_parameters()}
        kept = {name: torch.zeros(size, dtype=torch.float64) for name, size in sizes.items()}
        state = {} if self._handle is None else self._handle.state_dict()
        if state.get("residual") is not None:
            names = [name for bucket in state["buckets"] for name in bucket["names"]]
            parts = state["residual"].double().split([sizes[name] for name in names])
            kept |= dict(zip(names, parts, strict=True))
        return torch.cat(list(kept.values()))


def _gradient_of(model: nn.Module) -> Tensor:
    gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in model.parameters()]
    return torch.cat([gradient.detach().double().flatten() for gradient in gradients])


def train(
    config: dict | None, *, num_steps: int = 20, make: Callable[[], nn.Module] = mlp, ddp_options: dict | None = None
) -> dict[str, Any]:
    """Train with a hook, or with plain DDP if there is no config; return parameters and what the handle says.

    ``lost`` is the largest share of the gradients that any step has lost.
    """
    ddp = wrap(make(), **(ddp_options or {}))
    handle = None if config is None else headway.attach(ddp, fixed(**config))
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05, momentum=0.9)
    ledger, losses = Ledger(ddp, handle), []
    for step in range(num_steps):
        ledger.give(lambda model, step=step: loss_of(model, step))
        losses.append(step_once(ddp, optimizer, step))
        ledger.apply()
    seen: dict[str, Any] = {"parameters": parameters_of(ddp), "losses": losses, "lost": ledger.lost()}
    if handle is not None:
        seen |= {"plan": handle.plan, "history": handle.records, "statistics": handle.statistics()}
        handle.close()
    return seen


def check_averages(results: list[dict], exchange: str) -> None:
    """Check that ranks are equal to the bit, that no gradient was lost, and that the exchange has really run."""
    assert len({bits(result["parameters"]) for result in results}) == 1
    for result in results:
        assert result["lost"] < ROUNDING
        assert result["history"][-1].exchange == exchange
        if exchange != "dense":
            assert result["history"][-1].wire_bytes < result["history"][-1].dense_bytes


def bits(tensor: Tensor) -> bytes:
    return tensor.contiguous().view(torch.uint8).numpy().tobytes()
