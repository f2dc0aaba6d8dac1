"""The codec of control messages: any dataclass as a vector of float64, and back.

A message has a fixed size that follows from its class, so nothing has to announce it. Its layout is that of the fields:
a number, truth value or `Literal` takes one place, a nested dataclass its fields, a plan its index in the list that all
ranks hold and its pace, a value that may be None a flag in front, and a tuple its length and room for the most entries
it may have.
"""

from __future__ import annotations

import types
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import lru_cache
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import torch
from torch import Tensor

from headway.errors import MessageError
from headway.exchange import Plan

M = TypeVar("M")
_PLAN_SIZE = 3
"""Its index, and its pace: local steps and delay."""


@dataclass(frozen=True)
class AtMost:
    """The most entries of a tuple in a message: ``Annotated[tuple[float, ...], AtMost(3)]``."""

    number: int


class Codec:
    """Turns messages into vectors of float64, and back.

    Args:
        plans: The plans that messages may name, in the same order on all ranks; any pace goes with each.

    >>> @dataclass(frozen=True)
    ... class Reading:
    ...     step: int
    ...     seconds: Annotated[tuple[float, ...], AtMost(3)]
    >>> Codec().encode(Reading(7, (0.5, 0.25)))
    tensor([7.0000, 2.0000, 0.5000, 0.2500, 0.0000], dtype=torch.float64)
    """

    def __init__(self, plans: Sequence[Plan] = ()) -> None:
        self._plans = list(plans)
        self._place_of = {plan: place for place, plan in enumerate(self._plans)}

    def size(self, kind: type) -> int:
        """Return how many numbers a message of a class takes."""
        return _size(kind)

    def encode(self, message: Any) -> Tensor:
        """Return a message as numbers."""
        return torch.tensor(list(self._numbers(type(message), message)), dtype=torch.float64)

    def decode(self, kind: type[M], numbers: Tensor) -> M:
        """Return the message of a class that numbers stand for; numbers that stand for none raise `MessageError`."""
        if numbers.numel() != self.size(kind):
            raise MessageError(f"{numbers.numel()} numbers, but a {kind.__name__} takes {self.size(kind)}")
        message: M = self._read(kind, iter(numbers.tolist()))
        return message

    def _numbers(self, kind: Any, value: Any) -> Iterator[float]:
        """Yield the numbers of a value, as many as its type always takes."""
        inner, most = _parts(kind)
        if most is not None:
            if len(value) > most:
                raise ValueError(f"{len(value)} entries do not fit: a message has room for {most}")
            yield float(len(value))
            for each in value:
                yield from self._numbers(inner, each)
            yield from [0.0] * (_size(inner) * (most - len(value)))
        elif inner is not kind:  # may be None
            yield float(value is not None)
            yield from [0.0] * _size(inner) if value is None else self._numbers(inner, value)
        elif kind is Plan:
            yield from (float(self._place_of[value.without_pace]), float(value.local_steps), float(value.delay))
        elif get_origin(kind) is Literal:
            yield float(get_args(kind).index(value))
        elif names := _wire_fields(kind):
            for name, hint in names:
                yield from self._numbers(hint, getattr(value, name))
        else:
            yield float(value)

    def _read(self, kind: Any, values: Iterator[float]) -> Any:
        inner, most = _parts(kind)
        if most is not None:
            length = _index(next(values), most + 1, "entries")
            entries = tuple(self._read(inner, values) for _ in range(length))
            _skip(values, _size(inner) * (most - length))
            return entries
        if inner is not kind:
            if bool(next(values)):
                return self._read(inner, values)
            return _skip(values, _size(inner))
        if names := _wire_fields(kind):
            return kind(**{name: self._read(hint, values) for name, hint in names})
        number = next(values)
        if kind is Plan:
            return self._paced(self._plans[_index(number, len(self._plans), "plans")], next(values), next(values))
        if get_origin(kind) is Literal:
            return get_args(kind)[_index(number, len(get_args(kind)), "choices")]
        return kind(number)

    @staticmethod
    def _paced(plan: Plan, local_steps: float, delay: float) -> Plan:
        try:
            return replace(plan, local_steps=int(local_steps), delay=int(delay))
        except (ValueError, OverflowError) as error:
            raise MessageError(f"{local_steps} local steps, applied {delay} late, are no pace") from error


def _index(number: float, size: int, what: str) -> int:
    """Return a number as an index."""
    if not (number == number // 1 and 0 <= number < size):
        raise MessageError(f"{number} is not an index of {size} {what}")
    return int(number)


def _skip(values: Iterator[float], number: int) -> None:
    """Pass over the room that a message has not used."""
    for _ in range(number):
        next(values)


def _parts(kind: Any) -> tuple[Any, int | None]:
    """Return the type inside a tuple, and its room, or inside an optional; otherwise the type itself."""
    if get_origin(kind) is Annotated:
        hint, room = get_args(kind)
        return get_args(hint)[0], room.number
    if get_origin(kind) in (Union, types.UnionType):
        (inner,) = (each for each in get_args(kind) if each is not type(None))
        return inner, None
    return kind, None


@lru_cache(maxsize=256)
def _wire_fields(kind: Any) -> tuple[tuple[str, Any], ...]:
    """Return the fields of a dataclass or named tuple that are sent, with their types; nothing for a plain number."""
    if kind is Plan or not (is_dataclass(kind) or hasattr(kind, "_fields")):
        return ()
    hints = get_type_hints(kind, include_extras=True)
    if hasattr(kind, "_fields"):
        return tuple((name, hints[name]) for name in kind._fields)
    return tuple((each.name, hints[each.name]) for each in fields(kind) if each.metadata.get("is_sent", True))


@lru_cache(maxsize=256)
def _size(kind: Any) -> int:
    inner, most = _parts(kind)
    if most is not None:
        return 1 + most * _size(inner)
    if inner is not kind:
        return 1 + _size(inner)
    return sum(_size(hint) for _, hint in _wire_fields(kind)) or (_PLAN_SIZE if kind is Plan else 1)
