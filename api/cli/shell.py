"""Commands and groups that start cheaply: a command's module is imported when it is named.

Help is rendered by rich-click, which is imported when help is shown.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Sequence

import click

from api.cli.index import MODULES


class Command(click.Command):
    """A command whose help is rich-click's."""

    panels: Sequence[object] = ()

    def get_help(self, ctx: click.Context) -> str:
        return _help(self, ctx)


class Group(click.Group):
    """A group that imports a command when it is named, and all of them when it lists them."""

    command_class = Command
    group_class = type
    panels: Sequence[object] = ()

    def get_help(self, ctx: click.Context) -> str:
        return _help(self, ctx)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.commands:
            module = MODULES.get(" ".join([*_path(ctx), cmd_name]))
            if module is None:
                load_all()
            else:
                importlib.import_module(f"api.cli.{module}")
        return super().get_command(ctx, cmd_name)

    def list_commands(self, ctx: click.Context) -> list[str]:
        load_all()
        return super().list_commands(ctx)


def load_all() -> None:
    """Import every command: help, completion and a name that is not known need them all."""
    package = importlib.import_module("api.cli")
    for found in pkgutil.iter_modules(package.__path__):
        if not found.name.startswith("_"):
            importlib.import_module(f"api.cli.{found.name}")


def _path(ctx: click.Context) -> list[str]:
    """The groups within the program that lead to a context's command."""
    names: list[str] = []
    while ctx.parent is not None:
        names.insert(0, str(ctx.command.name))
        ctx = ctx.parent
    return names


def _help(command: click.Command, ctx: click.Context) -> str:
    from api.cli.helping import page

    ctx.color = True  # the page has only the colours that this output is to have
    return page(command, ctx)
