"""Help as rich-click renders it; imported only when help is shown."""

from __future__ import annotations

from typing import cast

import click
from rich_click import RichCommand, RichContext, RichHelpConfiguration

from api.cli.index import PANELS
from api.cli.program import COMMON

_CONFIGURATION = RichHelpConfiguration(
    text_markup="markdown",
    show_arguments=True,
    style_option="bold cyan",
    option_groups={"*": [{"name": "Common flags", "options": [*COMMON, "--help"]}]},
    command_groups={
        "unrewind": [{"name": name, "commands": commands} for name, commands in PANELS.items()]
    },
)


def page(command: click.Command, context: click.Context) -> str:
    """The help of a command or group."""
    rich = RichContext(
        command,
        parent=context.parent,
        info_name=context.info_name,
        rich_help_config=_CONFIGURATION,
    )
    formatter = rich.make_formatter()
    # Plain commands have all that these methods read; only `format_usage` is one of theirs too.
    shown = cast("RichCommand", command)
    command.format_usage(rich, formatter)
    RichCommand.format_help_text(shown, rich, formatter)
    RichCommand.format_options(shown, rich, formatter)
    RichCommand.format_epilog(shown, rich, formatter)
    return formatter.getvalue().rstrip("\n")
