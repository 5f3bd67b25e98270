"""Services whose store and journal are on servers, and what those servers really hold."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import psycopg

from tests.soak.clients import Cut
from tests.soak.ledger import Ledger
from tests.soak.processes import Server, Site, item, until

CASES = '[lifecycle.case]\nkind = "free"\n'
UNAVAILABLE = "/problems/journal-unavailable"
BUSY = {UNAVAILABLE, "/problems/overloaded"}
CLOSED = "/problems/recovering"
_ENTRIES = (
    "SELECT operation, entity, revision, sequence, history, digest"
    " FROM unrewind_journal_main.entries WHERE stream = 'decisions' ORDER BY sequence"
)


def config(store: str, journal: str, more: str = CASES) -> str:
    """What stands in `unrewind.toml`; a test that goes on at once looks again soon."""
    return f'store = "{store}"\njournal = "{journal}"\nhandoff_every = 0.3\n{more}'


def check_journal(ledger: Ledger, url: str) -> None:
    """The journal's server holds what was acknowledged, each operation once, in order."""
    with psycopg.connect(url) as client:
        rows = client.execute(_ENTRIES).fetchall()
    ledger.check_rows([(*row[:4], *map(_hex, row[4:])) for row in rows])


def _hex(value: Any) -> str:
    return bytes(value).hex() if isinstance(value, bytes | memoryview) else str(value)


def goes_on(server: Server, ledger: Ledger, name: str) -> dict[str, Any]:
    """Repeat one operation under its ID until it is accepted, as a client does; what came before.

    The last answer but the acceptance; nothing when the first one was it.
    """
    made = ledger.send(item(name, f"case/{name}", body={"name": name}))
    before: dict[str, Any] = {}

    def accepted() -> bool:
        nonlocal before
        status, answer = server.ask("POST", "/v1/main/decisions", made)
        ledger.hear(name, status, answer)
        if status in {200, 201}:
            return True
        before = answer
        return False

    until(f"{name} is accepted again", accepted)
    return before


def everything_holds(site: Site, server: Server, ledger: Ledger, journal: str) -> None:
    """What was acknowledged is there and answered as at first; the rest is settled now."""
    ledger.repeat(server, ledger.told)
    ledger.repeat(server, ledger.unsettled)
    assert not ledger.unsettled
    check_journal(ledger, journal)
    report = site.do("verify")
    assert (report["verdict"], report["findings"]) == ("clean", [])


class Load:
    """Clients that decide one thing after the other until they are told to end.

    What a client is not told it repeats under the same operation ID. Every refusal is kept. Their
    bodies are ``size`` long.
    """

    def __init__(
        self, server: Server, ledger: Ledger, name: str, *, clients: int = 4, size: int = 1
    ) -> None:
        self._server, self._ledger, self._name, self._size = server, ledger, name, size
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._wrong: list[BaseException] = []
        self.accepted = 0
        self.refused: list[dict[str, Any]] = []
        self._threads = [
            threading.Thread(target=self._run, args=(number,)) for number in range(clients)
        ]
        for thread in self._threads:
            thread.start()

    def until(self, what: str, holds: Callable[[], Any]) -> None:
        """Let it go on until that is so."""
        until(what, lambda: self._wrong or holds())

    def more(self, count: int = 20) -> None:
        """Let it go on until so many more decisions were accepted."""
        before = self.accepted
        self.until(f"{count} more are accepted", lambda: self.accepted >= before + count)

    def refusal(self, words: str = "") -> None:
        """Let it go on until one more was refused, for a reason that has these words."""
        before = len(self.refused)
        self.until(
            f"one more is refused: {words}",
            lambda: any(words in answer["detail"] for answer in self.refused[before:]),
        )

    def end(self) -> None:
        """No more than what is on its way; raises what went wrong."""
        self._over.set()
        for thread in self._threads:
            thread.join()
        if self._wrong:
            raise self._wrong[0]

    def _run(self, number: int) -> None:
        try:
            made = 0
            while not self._over.is_set():
                made += 1
                self._decide(f"{self._name}-{number}-{made}")
        except BaseException as error:  # noqa: BLE001 - told by `end`, in the test's own thread
            self._wrong.append(error)

    def _decide(self, operation: str) -> None:
        with self._lock:
            entity = f"case/{hash(operation) % 7}"
            made = self._ledger.send(item(operation, entity, body={"text": "x" * self._size}))
        while not self._over.is_set():
            try:
                status, answer = self._server.ask("POST", "/v1/main/decisions", made)
            except Cut:
                continue
            with self._lock:
                self._ledger.hear(operation, status, answer)
                if status in {200, 201}:
                    self.accepted += 1
                    return
                self.refused.append(answer)
            self._over.wait(0.02)
