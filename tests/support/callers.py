"""Both clients behind one blocking surface, so that a test asks each the same."""

import asyncio
import contextlib
import inspect
from collections.abc import Iterator
from typing import Any

from api.client import AsyncClient, Client

KINDS = ["blocking", "awaited"]


class _Blocking:
    """Whatever is awaited of an object is run to its end in one loop."""

    def __init__(self, runner: asyncio.Runner, what: Any) -> None:
        self._runner = runner
        self._what = what

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._what, name)
        if not callable(found):
            return found

        def call(*args: Any, **named: Any) -> Any:
            answer = found(*args, **named)
            return self._runner.run(answer) if inspect.iscoroutine(answer) else answer

        return call

    @contextlib.contextmanager
    def permit(self, *args: Any, **named: Any) -> Iterator[Any]:
        claiming = self._what.permit(*args, **named)
        permit = self._runner.run(claiming.__aenter__())
        try:
            yield None if permit is None else _Blocking(self._runner, permit)
        except BaseException as error:
            self._runner.run(claiming.__aexit__(type(error), error, None))
            raise
        else:
            self._runner.run(claiming.__aexit__(None, None, None))


@contextlib.contextmanager
def calling(kind: str, url: str, token: str, **settings: Any) -> Iterator[Any]:
    """A client of a kind, closed at the end. Faults are to be met quickly here."""
    kept = {"timeout": 20.0, "deadline": 60.0, "report_deadline": 60.0, **settings}
    if kind == "blocking":
        with Client(url, token, **kept) as blocking:
            yield blocking
        return
    with asyncio.Runner() as runner:
        client = AsyncClient(url, token, **kept)
        try:
            yield _Blocking(runner, client)
        finally:
            runner.run(client.aclose())
