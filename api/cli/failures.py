"""How a command ends badly: one line on stderr, an exit code, and with --json an object on stdout.

The exit codes are a contract (docs/commands.md): 0 fine, 1 findings, 2 usage, 3 closed or refused.
"""

from __future__ import annotations

import errno
import os
import re
import sys
from collections.abc import Callable
from enum import IntEnum
from typing import Any

import click
import msgspec

from api.output import one_line, print_json
from journal.control import ControlUnreadable
from journal.errors import (
    Invalid,
    JournalUnavailable,
    LockHeld,
    NewerFormat,
    NotFound,
    Recovering,
    SettingsInvalid,
    UnrewindError,
)


class Code(IntEnum):
    """Exit codes. The last two are 128 plus the number of the signal that the shell knows."""

    FINE = 0
    FINDINGS = 1
    USAGE = 2
    REFUSED = 3
    INTERRUPTED = 130
    PIPE_CLOSED = 141


class Interrupted(UnrewindError):
    """The command was interrupted. What was acknowledged is kept; repeating it is safe."""


_USAGE_ERRORS = (Invalid, NotFound, SettingsInvalid)

_NEXT_STEPS: tuple[tuple[type[UnrewindError], str], ...] = (
    (ControlUnreadable, "look with `unrewind status`; the journal's file needs a person"),
    (Recovering, "look with `unrewind status`; an operator recovers with `unrewind recover begin`"),
    (NewerFormat, "operations keep their IDs until then"),
    (JournalUnavailable, "repeat later with the same operation ID; `unrewind status` says more"),
    (LockHeld, "then repeat"),
)

_ADVICE = {
    errno.EACCES: "run as the user who owns the files",
    errno.EPERM: "run as the user who owns the files",
    errno.EROFS: "the filesystem is mounted read-only",
    errno.ENOSPC: "free space there, then repeat: operations keep their IDs",
    errno.EDQUOT: "free space there, then repeat: operations keep their IDs",
    errno.EIO: "the disk fails: check it before anything else",
    errno.EMFILE: "raise the limit of open files (ulimit -n)",
}


def guarded(work: Callable[[], Any], *, as_json: bool) -> int:
    """Run a command to its exit code, saying what went wrong where something did."""
    try:
        code = _run(work, as_json=as_json)
        sys.stdout.flush()
    except BrokenPipeError:
        _let_go_of_stdout()
        code = Code.PIPE_CLOSED
    except OSError as error:
        # Standard output itself cannot be written: stderr alone is left to say so.
        _let_go_of_stdout()
        code = _report("system", _describe(error), {}, Code.REFUSED, as_json=False)
    return int(code)


def _run(work: Callable[[], Any], *, as_json: bool) -> int:
    try:
        result = work()
    except click.exceptions.Exit as done:
        return done.exit_code
    except click.exceptions.NoArgsIsHelpError as error:
        return _no_command(error, as_json=as_json)
    except click.ClickException as error:
        detail = f"{error.format_message().rstrip('.')}; see `{_path_of(error)} --help`"
        return _report("usage", detail, {}, Code.USAGE, as_json=as_json)
    except UnrewindError as error:
        code = Code.USAGE if isinstance(error, _USAGE_ERRORS) else Code.REFUSED
        if isinstance(error, Interrupted):
            code = Code.INTERRUPTED
        return _report(_slug(error), _advise(error), error.members, code, as_json=as_json)
    except BrokenPipeError:
        raise
    except UnicodeError as error:
        detail = f"an argument or a file is not text in UTF-8: {error}"
        return _report("invalid", detail, {}, Code.USAGE, as_json=as_json)
    except OSError as error:
        return _report("system", _describe(error), {}, Code.REFUSED, as_json=as_json)
    except (KeyboardInterrupt, click.Abort):
        return _report("interrupted", Interrupted().detail, {}, Code.INTERRUPTED, as_json=as_json)
    return result if isinstance(result, int) else Code.FINE


def _path_of(error: click.ClickException) -> str:
    context = getattr(error, "ctx", None)
    return "unrewind" if context is None else str(context.command_path)


def _no_command(error: click.exceptions.NoArgsIsHelpError, *, as_json: bool) -> int:
    """Help for a person at a terminal; for a script it is a usage error like any other."""
    if sys.stderr.isatty() and not as_json:
        click.echo(error.message, err=True)
        return Code.USAGE
    detail = f"a command is missing; `{_path_of(error)} --help` lists them"
    return _report("usage", detail, {}, Code.USAGE, as_json=as_json)


def _report(name: str, detail: str, members: dict[str, Any], code: Code, *, as_json: bool) -> Code:
    line = one_line(detail)
    if as_json:
        plain = msgspec.to_builtins(members, str_keys=True)
        print_json({"error": name, "detail": line, **plain})
    click.echo(f"unrewind: {line}", err=True)
    return code


def _slug(error: UnrewindError) -> str:
    """The error's name as problem documents spell it: `RevisionMismatch`, `revision-mismatch`."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "-", type(error).__name__).lower()


def _advise(error: UnrewindError) -> str:
    for kind, advice in _NEXT_STEPS:
        if isinstance(error, kind):
            return f"{error.detail.rstrip('.')}; {advice}"
    return error.detail


def _describe(error: OSError) -> str:
    what = (error.strerror or str(error) or type(error).__name__).lower()
    where = f": {os.fsdecode(error.filename)}" if isinstance(error.filename, str | bytes) else ""
    advice = _ADVICE.get(error.errno or 0)
    return f"{what}{where}" + (f"; {advice}" if advice else "")


def _let_go_of_stdout() -> None:
    """Nobody reads or nothing fits: keep the interpreter from complaining about it at exit."""
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, sys.stdout.fileno())
    os.close(nothing)
