"""Options of a command, taken from the fields of settings classes."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import Field, fields
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar, get_args, get_origin, get_type_hints

import typer
from typer.core import TyperCommand

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    Settings = TypeVar("Settings", bound=DataclassInstance)


def with_fields(function: Callable[..., None], panels: Mapping[str, type[DataclassInstance]]) -> Callable[..., None]:
    """Return a function for typer, whose ``**options`` are one option for each field of some dataclasses.

    A field's type and default are those of the option, its ``metadata["help"]`` the help text, and its name, or
    ``metadata["flag"]``, the flag.

    Args:
        function: The command; it has ``**options``.
        panels: The dataclasses, by the title that their options have in the help.
    """
    parameters = list(inspect.signature(function, eval_str=True).parameters.values())
    assert parameters[-1].kind is inspect.Parameter.VAR_KEYWORD
    parameters[-1:] = [
        inspect.Parameter(
            each.name, inspect.Parameter.KEYWORD_ONLY, default=each.default, annotation=_annotation(each, cls, title)
        )
        for title, cls in panels.items()
        for each in fields(cls)
    ]

    def run(**given: Any) -> None:
        function(**given)

    run.__doc__ = function.__doc__
    run.__annotations__ = {each.name: each.annotation for each in parameters}
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return run


def settings_from(cls: type[Settings], options: Mapping[str, Any]) -> Settings:
    """Return a dataclass made from those options that are its fields."""
    return cls(**{each.name: options[each.name] for each in fields(cls)})


def _annotation(each: Field[Any], cls: type, title: str) -> Any:
    flag = each.metadata.get("flag") or f"--{each.name.replace('_', '-')}"
    kind = get_type_hints(cls)[each.name]
    if get_origin(kind) is Literal:  # the dataclass checks it, and its message says more
        kind = type(get_args(kind)[0])
    return Annotated[kind, typer.Option(flag, help=each.metadata["help"], rich_help_panel=title)]


class DeferredCommand(TyperCommand):
    """A command whose options are costly to import: its callback returns the function to run, when it is run."""

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        """Build the command, and return a context of it rather than of this stand-in."""
        assert self.callback is not None
        app = typer.Typer(add_completion=False)
        app.command(self.name, help=self.help)(self.callback())
        return typer.main.get_command(app).make_context(info_name, args, parent, **extra)
