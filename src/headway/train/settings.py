"""The settings of a training run."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from headway.collectives import AUTO
from headway.compress import check_ratio
from headway.ddp import Adaptive, Fixed
from headway.exchange import EXCHANGES
from headway.gossip import ALGORITHMS, GRAPHS
from headway.kernels import VALUE_FORMATS, ValueFormat
from headway.train.models import MODELS, check_model
from headway.train.optimizers import OPTIMIZERS, SCHEDULES
from headway.train.samples import Task
from headway.train.workloads import WORKLOADS, Workload
from headway.tuner import POLICIES, policy_of

PLAIN = "ddp"
ADAPTIVE = "adaptive"
LOCAL = "local"
GOSSIP = "gossip-"
_MOST = 1e9
_MOST_SEEDS = 2**40
_SUITABLE = "by default what suits the workload"


def method_names() -> tuple[str, ...]:
    """Return the ways to train: DDP without a hook, the tuner, local steps, any exchange, any gossip algorithm."""
    return (PLAIN, ADAPTIVE, LOCAL, *EXCHANGES, *_gossip_names())


def _gossip_names() -> list[str]:
    return [f"{GOSSIP}{algorithm}" for algorithm in ALGORITHMS]


def _list(names: Iterable[str]) -> str:
    return ", ".join(names)


def _option(default: Any, help_text: str, flag: str | None = None) -> Any:
    """Return a field that is an option of the command line as well."""
    return field(default=default, metadata={"help": help_text, "flag": flag})


@dataclass(frozen=True, kw_only=True)
class TrainSettings:
    """Everything about a run but its workers and network. Each field is an option of ``headway train``."""

    workload: str = _option("digits", _list(f"{name} ({each.description})" for name, each in WORKLOADS.items()) + ".")
    data: str | None = _option(None, "Folder of idx files, or text file, for workloads that take one.")
    model: str | None = _option(None, f"Model: {_list(MODELS)}; {_SUITABLE}.")
    method: str = _option(
        ADAPTIVE,
        f"How to train: {ADAPTIVE}; {PLAIN} (plain DDP without a hook); {LOCAL} (several steps between "
        f"exchanges); one exchange throughout: {_list(EXCHANGES)}; "
        f"or gossip: {_list(_gossip_names())}.",
    )
    steps: int | None = _option(None, "Number of steps; with --resume, the new total.")
    epochs: float = _option(5.0, "Passes over the samples, if --steps is not given.")
    batch_size: int = _option(16, "Samples per worker and step.")
    optimizer: str | None = _option(None, f"Optimizer: {_list(OPTIMIZERS)}; {_SUITABLE}.")
    lr: float | None = _option(None, f"Learning rate; {_SUITABLE}.")
    weight_decay: float = _option(1e-4, "Weight decay of the optimizer.")
    schedule: str = _option("constant", f"Schedule of the learning rate: {_list(SCHEDULES)}.")
    warmup_steps: int = _option(0, "Steps over which the learning rate rises at the start.")
    ratio: float = _option(0.01, "Share of entries to send, for exchanges that send a share.")
    values: ValueFormat = field(
        default="fp32", metadata={"help": f"Format of the values that an exchange sends: {_list(VALUE_FORMATS)}."}
    )
    policy: str = _option("balanced", f"Policy of {ADAPTIVE} and {LOCAL}: {_list(POLICIES)}.")
    local_steps: str = _option(AUTO, f"Steps from one exchange to the next, for {LOCAL}: a number, or {AUTO}.")
    topology: str = _option("ring", f"Topology of gossip: {_list(GRAPHS)}.")
    eval_every: int = _option(50, "Steps between evaluations; there is always one at the end.")
    eval_samples: int = _option(2000, "Samples of the test set to evaluate on; 0 for all.")
    checkpoint_every: int = _option(100, "Steps between checkpoints; 0 for one at the end only.")
    tensorboard: bool = _option(False, "Write scalars for TensorBoard as well.")
    seed: int = _option(0, "Seed of the model, the order of samples, and the emulated network.")
    timeout_s: float = _option(60.0, "Seconds without a sign of life after which a worker counts as lost.", "--timeout")

    def __post_init__(self) -> None:
        _one_of("workload", self.workload, WORKLOADS)
        _one_of("method", self.method, method_names())
        _one_of("schedule", self.schedule, SCHEDULES)
        _one_of("optimizer", self.chosen_optimizer, OPTIMIZERS)
        check_model(self.chosen_model, is_text=self.kind.is_text)
        if self.steps is not None:
            _at_least("steps", self.steps, 1)
        for name in ("batch_size", "eval_every"):
            _at_least(name, getattr(self, name), 1)
        for name in ("warmup_steps", "eval_samples", "checkpoint_every", "seed"):
            _at_least(name, getattr(self, name), 0)
        for name, value in (("epochs", self.epochs), ("lr", self.chosen_lr), ("timeout", self.timeout_s)):
            if not 0 < value < _MOST:
                raise ValueError(f"{name} is {value}, but must be above 0 and below {_MOST:g}")
        if not 0 <= self.weight_decay < 1:
            raise ValueError(f"weight_decay is {self.weight_decay}, but must be in [0, 1)")
        if self.seed >= _MOST_SEEDS:
            raise ValueError(f"seed is {self.seed}, but must be below {_MOST_SEEDS}")
        check_ratio(self.ratio)
        policy_of(self.policy)
        _one_of("values", self.values, VALUE_FORMATS)
        _one_of("topology", self.topology, GRAPHS)
        _ = self.steps_between_exchanges
        _ = self.config  # which checks combinations

    @property
    def kind(self) -> Workload:
        """The workload."""
        return WORKLOADS[self.workload]

    @property
    def chosen_model(self) -> str:
        """Name of the model."""
        return self.model or self.kind.model

    @property
    def chosen_optimizer(self) -> str:
        """Name of the optimizer."""
        return self.optimizer or self.kind.optimizer

    @property
    def chosen_lr(self) -> float:
        """The learning rate."""
        return self.kind.lr if self.lr is None else self.lr

    @property
    def gossip_algorithm(self) -> str | None:
        """The algorithm, if the method is gossip."""
        return self.method.removeprefix(GOSSIP) if self.method.startswith(GOSSIP) else None

    @property
    def steps_between_exchanges(self) -> int | Literal["auto"]:
        """Steps from one exchange to the next, for local steps."""
        if self.local_steps == AUTO:
            return "auto"
        if not self.local_steps.isdecimal() or int(self.local_steps) < 1:
            raise ValueError(f"local_steps is {self.local_steps!r}, but must be {AUTO!r}, or a number from 1 on")
        return int(self.local_steps)

    @cached_property
    def config(self) -> Adaptive | Fixed | None:
        """The configuration for `headway.attach` or `headway.local.wrap`; None for methods that take none."""
        common: dict[str, Any] = {"seed": self.seed, "timeout_s": self.timeout_s}
        if self.method in (ADAPTIVE, LOCAL):
            return Adaptive(policy=self.policy, **common)
        if self.method in EXCHANGES:
            return Fixed(exchange=self.method, ratio=self.ratio, values=self.values, **common)
        return None

    def title(self, num_workers: int, network: str) -> str:
        """Return what is trained, how and where."""
        return f"{self.method}: {self.workload} on {num_workers} workers, {network}"

    def load_task(self) -> Task:
        """Load the data.

        Raises:
            ValueError: It is missing or damaged; the message says what to do.
        """
        return self.kind.load(None if self.data is None else Path(self.data))

    def num_steps(self, steps_per_epoch: int) -> int:
        """Return the number of steps of the run."""
        return self.steps or max(1, round(self.epochs * steps_per_epoch))

    def as_dict(self) -> dict[str, Any]:
        """Return all fields as plain data, with an absolute path of the data."""
        return {**asdict(self), "data": None if self.data is None else str(Path(self.data).resolve())}

    @classmethod
    def from_dict(cls, content: dict[str, Any]) -> TrainSettings:
        """Return the settings in a configuration; its other entries are ignored."""
        return cls(**{field.name: content[field.name] for field in fields(cls) if field.name in content})


def _one_of(name: str, value: str, allowed: Iterable[str]) -> None:
    if value not in allowed:
        raise ValueError(f"there is no {name} {value!r}: choose one of {_list(allowed)}")


def _at_least(name: str, value: int, least: int) -> None:
    if value < least:
        raise ValueError(f"{name} is {value}, but must be {least} or more")
