"""What a training run is asked to do."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any

from headway.compress import check_ratio
from headway.ddp import Adaptive, Fixed
from headway.exchange.plan import COLLECTIVE_OF
from headway.gossip import ALGORITHMS
from headway.gossip.graphs import GRAPHS
from headway.kernels import VALUE_FORMATS, ValueFormat
from headway.train.models import check_model
from headway.train.samples import Task
from headway.train.schedule import SCHEDULES
from headway.train.workloads import WORKLOADS, Workload
from headway.tuner import policy_of

PLAIN = "ddp"
ADAPTIVE = "adaptive"
GOSSIP = "gossip-"
METHODS = (PLAIN, ADAPTIVE, *COLLECTIVE_OF, *(f"{GOSSIP}{algorithm}" for algorithm in ALGORITHMS))
"""Ways to train: DDP without a hook, the tuner, one exchange throughout, or an algorithm of gossip."""
OPTIMIZERS = ("sgd", "adamw")
_MOMENTUM = 0.9
_MOST = 1e9
_MOST_SEEDS = 2**40


@dataclass(frozen=True, kw_only=True)
class Settings:
    """All that decides how a run goes, but for the network.

    Args:
        workload: "digits", "fashion-mnist" or "text".
        data: The folder or file of the workload, where it has none of its own.
        model: "mlp", "cnn", "resnet" or "transformer"; None for what suits the workload.
        method: One of `METHODS`.
        steps: How many; None to have ``epochs`` decide.
        epochs: How often every sample is seen, if ``steps`` is not given.
        batch_size: Of each worker.
        optimizer: "sgd" (with momentum 0.9) or "adamw"; None for what suits the workload.
        lr: The learning rate; None for what suits the workload.
        weight_decay: Of the optimizer.
        schedule: "constant", "cosine" or "step".
        warmup_steps: Over which the learning rate rises.
        ratio: Of methods that send a share of the entries.
        values: "fp32", "fp16" or "int8", of the same.
        policy: Of the tuner.
        topology: Of gossip.
        eval_every: Steps between evaluations; there is one at the end in any case.
        eval_samples: How many samples of the test set to evaluate on; 0 for all.
        checkpoint_every: Steps between checkpoints, beside the last; 0 for that alone.
        tensorboard: Whether to write scalars for TensorBoard as well.
        seed: Of the model, the order of samples, and all random choices.
        timeout_s: How long a worker may keep others waiting.
    """

    workload: str = "digits"
    data: str | None = None
    model: str | None = None
    method: str = ADAPTIVE
    steps: int | None = None
    epochs: float = 5.0
    batch_size: int = 16
    optimizer: str | None = None
    lr: float | None = None
    weight_decay: float = 1e-4
    schedule: str = "constant"
    warmup_steps: int = 0
    ratio: float = 0.01
    values: ValueFormat = "fp32"
    policy: str = "balanced"
    topology: str = "ring"
    eval_every: int = 50
    eval_samples: int = 2000
    checkpoint_every: int = 100
    tensorboard: bool = False
    seed: int = 0
    timeout_s: float = 60.0

    def __post_init__(self) -> None:
        _one_of("workload", self.workload, tuple(WORKLOADS))
        _one_of("method", self.method, METHODS)
        _one_of("schedule", self.schedule, SCHEDULES)
        _one_of("optimizer", self.chosen_optimizer, OPTIMIZERS)
        check_model(self.chosen_model, is_text=self.kind.is_text)
        if self.steps is not None:
            _at_least("steps", self.steps, 1)
        for name, least in (("batch_size", 1), ("eval_every", 1), ("warmup_steps", 0), ("eval_samples", 0)):
            _at_least(name, getattr(self, name), least)
        _at_least("checkpoint_every", self.checkpoint_every, 0)
        for name, value in (("epochs", self.epochs), ("lr", self.chosen_lr), ("timeout", self.timeout_s)):
            if not 0 < value < _MOST:
                raise ValueError(f"{name} is {value}, but must be above 0 and below {_MOST:g}")
        if not 0 <= self.weight_decay < 1:
            raise ValueError(f"weight_decay is {self.weight_decay}, but must be in [0, 1)")
        _at_least("seed", self.seed, 0)
        if self.seed >= _MOST_SEEDS:
            raise ValueError(f"seed is {self.seed}, but must be below {_MOST_SEEDS}")
        check_ratio(self.ratio)
        policy_of(self.policy)
        _one_of("values", self.values, VALUE_FORMATS)
        _one_of("topology", self.topology, tuple(GRAPHS))
        _ = self.hook_config  # which checks what goes together

    @property
    def kind(self) -> Workload:
        """What the workload is like."""
        return WORKLOADS[self.workload]

    @property
    def chosen_model(self) -> str:
        """The model, by name."""
        return self.model or self.kind.model

    @property
    def chosen_optimizer(self) -> str:
        """The optimizer, by name."""
        return self.optimizer or self.kind.optimizer

    @property
    def chosen_lr(self) -> float:
        """The learning rate."""
        return self.kind.lr if self.lr is None else self.lr

    @property
    def momentum(self) -> float:
        """Of "sgd"."""
        return _MOMENTUM

    @property
    def gossip_algorithm(self) -> str | None:
        """The algorithm, if the method is gossip."""
        return self.method.removeprefix(GOSSIP) if self.method.startswith(GOSSIP) else None

    @cached_property
    def hook_config(self) -> Adaptive | Fixed | None:
        """What to give to `headway.attach`; None for methods without a hook."""
        common: dict[str, Any] = {"seed": self.seed, "timeout_s": self.timeout_s}
        if self.method == ADAPTIVE:
            return Adaptive(policy=self.policy, **common)
        if self.method in COLLECTIVE_OF:
            return Fixed(exchange=self.method, ratio=self.ratio, values=self.values, **common)
        return None

    def load_task(self) -> Task:
        """Load the data.

        Raises:
            ValueError: It is not there, or damaged; the message says what to do.
        """
        return self.kind.load(None if self.data is None else Path(self.data))

    def num_steps(self, steps_per_epoch: int) -> int:
        """Return how many steps the run has."""
        return self.steps or max(1, round(self.epochs * steps_per_epoch))

    def as_dict(self) -> dict[str, Any]:
        """Return all fields as plain data that means the same from any folder."""
        return {**asdict(self), "data": None if self.data is None else str(Path(self.data).resolve())}

    @classmethod
    def from_dict(cls, content: dict[str, Any]) -> Settings:
        """Return the settings in a configuration; other entries of it are left alone."""
        return cls(**{field.name: content[field.name] for field in fields(cls) if field.name in content})


def _one_of(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ValueError(f"there is no {name} {value!r}: choose one of {', '.join(allowed)}")


def _at_least(name: str, value: int, least: int) -> None:
    if value < least:
        raise ValueError(f"{name} is {value}, but must be {least} or more")
