"""`unrewind` run in this process: the same program, without the time that a process takes to start.

For what a command does and says. Where a signal, a kill, a pipe or several processes are the
point, a test starts a process.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from api.cli import main


class Result:
    """How a command ended, and what it said."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err

    def __repr__(self) -> str:
        return f"exit {self.code}\nstdout: {self.out}\nstderr: {self.err}"

    @property
    def json(self) -> dict:
        assert self.out.count("\n") == 1, self
        return json.loads(self.out)

    def complains(self, code: int, *parts: str) -> str:
        """Ends with ``code`` and one line on stderr that has these parts; the line."""
        assert self.code == code, self
        assert self.err.startswith("unrewind: "), self
        assert self.err.count("\n") == 1, self
        assert self.err.endswith("\n"), self
        for part in parts:
            assert part in self.err, self
        return self.err


def unrewind(
    words: Sequence[str], home: Path, environment: Mapping[str, str], given: bytes = b""
) -> Result:
    """Run a command in a directory, with an environment and standard input of its own."""
    logger = logging.getLogger("unrewind")
    handlers = list(logger.handlers)
    with (
        tempfile.TemporaryFile() as out,
        tempfile.TemporaryFile() as err,
        tempfile.TemporaryFile() as into,
    ):
        into.write(given)
        into.seek(0)
        try:
            with _standing_in(home, environment), _speaking(into, out, err):
                main(list(words))
        except SystemExit as done:
            code = done.code
        finally:
            logger.handlers[:] = handlers
        out.seek(0)
        err.seek(0)
        assert isinstance(code, int)
        return Result(code, out.read().decode(), err.read().decode())


@contextmanager
def _standing_in(home: Path, environment: Mapping[str, str]) -> Iterator[None]:
    before, place = dict(os.environ), Path.cwd()
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(home)
    try:
        yield
    finally:
        os.chdir(place)
        os.environ.clear()
        os.environ.update(before)


@contextmanager
def _speaking(into: IO[bytes], out: IO[bytes], err: IO[bytes]) -> Iterator[None]:
    before = sys.stdin, sys.stdout, sys.stderr
    try:
        with (
            os.fdopen(os.dup(into.fileno()), encoding="utf-8") as sys.stdin,
            os.fdopen(os.dup(out.fileno()), "w", encoding="utf-8") as sys.stdout,
            os.fdopen(
                os.dup(err.fileno()), "w", encoding="utf-8", errors="backslashreplace"
            ) as sys.stderr,
        ):
            yield
    finally:
        sys.stdin, sys.stdout, sys.stderr = before
