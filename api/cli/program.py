"""The program `unrewind`: its flags, and the group that every command belongs to."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click
from msgspec import Struct

from api.cli.failures import guarded
from api.cli.shell import Group
from journal.errors import SettingsInvalid
from journal.settings import Settings, config_file, load

F = TypeVar("F", bound=Callable[..., Any])

_META = "unrewind.flags"
COMMON = ("--data", "--config", "--tenant", "--json")


class Flags(Struct):
    """The common flags as given, on whatever level of the command."""

    data: str | None = None
    config: str | None = None
    tenant: str | None = None
    json: bool = False


def flags() -> Flags:
    """The common flags of the command that runs."""
    found: Flags = click.get_current_context().meta.setdefault(_META, Flags())
    return found


def settings(**overrides: Any) -> Settings:
    """The settings that the flags, the environment and the configuration file add up to."""
    given = flags()
    if given.data == "":
        raise SettingsInvalid("--data is empty; name a directory")
    loaded = load(given.config, {"data": given.data, "tenant": given.tenant, **overrides})
    if loaded.home.exists() and not loaded.home.is_dir():
        raise SettingsInvalid(f"{loaded.data} is not a directory; name one with --data")
    return loaded


def configuration() -> Path | None:
    """The configuration file that the settings were read from; None: there is none."""
    path = config_file(flags().config)
    return path if path.is_file() else None


def _remember(context: click.Context, parameter: click.Parameter, value: Any) -> None:
    if value:
        setattr(context.meta.setdefault(_META, Flags()), str(parameter.name), value)
    elif value == "":
        setattr(context.meta.setdefault(_META, Flags()), str(parameter.name), "")


def common(function: F) -> F:
    """Give a command or group the common flags."""
    for option in (
        click.option(
            "--json",
            is_flag=True,
            expose_value=False,
            callback=_remember,
            help="Print one JSON object on stdout; errors too.",
        ),
        click.option(
            "--tenant",
            metavar="NAME",
            expose_value=False,
            callback=_remember,
            help="The tenant: one store and one journal. Default `main`.",
        ),
        click.option(
            "--config",
            metavar="FILE",
            expose_value=False,
            callback=_remember,
            help="The configuration file. Default `unrewind.toml` in this directory, if it exists.",
        ),
        click.option(
            "--data",
            metavar="DIR",
            expose_value=False,
            callback=_remember,
            help="The data directory. Default `data` in this directory.",
        ),
    ):
        function = option(function)
    return function


class Listing(Group):
    """A group whose command `list` needs no name: `unrewind lanes` lists, with its flags too."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Put `list` where no command is named."""
        at = 0
        while at < len(args) and args[at].partition("=")[0] in COMMON:
            at += 1 if "=" in args[at] or args[at] == "--json" else 2
        unnamed = at == len(args) or (at < len(args) and args[at].startswith("-"))
        if unnamed and "--help" not in args[at : at + 1]:
            args = [*args[:at], "list", *args[at:]]
        return super().parse_args(ctx, args)


class Program(Group):
    """The outermost group. It ends the process as docs/commands.md says, whatever happens."""

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> Any:
        """Run a command. Standing alone, this exits with the command's code."""
        if not standalone_mode:
            return super().main(
                args,
                prog_name,
                complete_var,
                standalone_mode=False,
                windows_expand_args=windows_expand_args,
                **extra,
            )
        words = list(sys.argv[1:] if args is None else args)
        self._main_shell_completion(extra, "unrewind", complete_var)

        def work() -> Any:
            with self.make_context("unrewind", words, **extra) as context:
                return self.invoke(context)

        before_end = words[: words.index("--")] if "--" in words else words
        sys.exit(guarded(work, as_json="--json" in before_end))


def _version(_context: click.Context) -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return f"unrewind {version('unrewind')}"
    except PackageNotFoundError:
        return "unrewind 0 (not installed)"


EPILOG = (
    "Exit codes: **0** fine, **1** findings, **2** usage, **3** closed or refused. "
    "Every command is described in docs/commands.md, every setting in docs/configuration.md."
)


@click.group("unrewind", cls=Program, epilog=EPILOG)
@click.custom_version_option(_version)
@common
def main() -> None:
    """An acknowledged decision survives a database rewind.

    `unrewind` keeps decisions in a store that can be rewound and in a journal that cannot, notices
    when the two disagree, and rebuilds what was lost. Commands that inspect or recover work on the
    files alone: beside a live server, beside a hung one, or with none.
    """
    if click.get_current_context().invoked_subcommand != "serve":
        # What a command has to say it says itself, in one line; a server keeps a log.
        logging.getLogger("unrewind").addHandler(logging.NullHandler())


def examples(*commands: str) -> str:
    """An epilog that shows commands as they are typed."""
    return "\n\n".join(["Examples:", *(f"- `{command}`" for command in commands)])


def existing_file(text: str) -> Path:
    """A file that is there to be read. Raises a usage error otherwise."""
    path = Path(text)
    if path.is_dir():
        raise click.UsageError(f"{text} is a directory, not a file")
    if not path.exists():
        raise click.UsageError(f"there is no file {text}")
    return path
