"""Options from dataclass fields."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Literal

import pytest
import typer
from typer.testing import CliRunner

from headway.cli import app
from headway.cli.options import DeferredCommand, settings_from, with_fields
from headway.lab.network_options import NetworkOptions
from headway.train.settings import TrainSettings


@dataclass(frozen=True, kw_only=True)
class Recipe:
    flour_g: int = field(default=500, metadata={"help": "Grams of flour.", "flag": "--flour"})
    oven: Literal["gas", "electric"] = field(default="gas", metadata={"help": "Kind of oven."})
    name: str | None = field(default=None, metadata={"help": "Name of the cake."})
    is_vegan: bool = field(default=False, metadata={"help": "Leave out the eggs."})


@pytest.fixture(params=[False, True], ids=["at once", "deferred"])
def bakery(request):
    """Return a command line with two commands, and what has been baked."""
    baked = []

    def bake(count: int = 1, **options):
        baked.append((count, settings_from(Recipe, options)))

    app, command = typer.Typer(), with_fields(bake, {"Recipe": Recipe})
    if request.param:
        app.command("bake", cls=DeferredCommand, help="Bake a cake.")(lambda: command)
    else:
        app.command("bake", help="Bake a cake.")(command)
    app.command("eat")(lambda: None)
    return app, baked


def test_fields_are_options_with_their_types_and_defaults(bakery):
    app, baked = bakery
    runner = CliRunner()
    assert runner.invoke(app, ["bake"]).exit_code == 0
    options = ["--count", "3", "--flour", "250", "--oven", "sun", "--name", "x", "--is-vegan"]
    assert runner.invoke(app, ["bake", *options]).exit_code == 0
    sunny = Recipe(flour_g=250, oven="sun", name="x", is_vegan=True)  # allowed values are the dataclass's business
    assert baked == [(1, Recipe()), (3, sunny)]
    wrong = runner.invoke(app, ["bake", "--flour", "much"])
    assert wrong.exit_code == 2
    assert "--flour" in wrong.stderr


def test_the_help_has_every_field(bakery):
    app, _ = bakery
    shown = CliRunner(env={"COLUMNS": "120"}).invoke(app, ["bake", "--help"]).stdout
    for words in (
        "Bake a cake.",
        "--flour",
        "Grams of flour. [default: 500]",
        "Name of the cake.",
        "Recipe",
        "--count",
    ):
        assert words in shown
    assert "--no-is-vegan" not in shown
    assert "Bake a cake." in CliRunner().invoke(app, ["--help"]).stdout


@pytest.mark.parametrize("command", ["train", "emulate"])
def test_the_help_of_a_command_has_every_setting(command):
    shown = CliRunner(env={"COLUMNS": "200"}).invoke(app, [command, "--help"]).stdout
    each = fields(NetworkOptions) + (fields(TrainSettings) if command == "train" else ())
    for option in each:
        flag = option.metadata.get("flag") or f"--{option.name.replace('_', '-')}"
        assert f" {flag} " in shown
