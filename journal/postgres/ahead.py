"""A schema whose next questions and next write can be on their way before they are waited for.

Store and journal are two servers, and each would stand idle while the other one works. So a turn
sends its questions to both at once, and the journal's entries while the store commits: they wait in
an open transaction, whose commit is sent when the store has committed, and not otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping

from journal.errors import Unreachable
from journal.postgres.database import BEGIN, COMMIT, ROLLBACK, PostgresDatabase
from journal.postgres.wire import Failed, Flight, Sent, Wire
from journal.sql import Batch, Result


class EagerDatabase(PostgresDatabase):
    """One schema, as ``PostgresDatabase`` has it.

    Whatever else is read or written here forgets what is on its way: answers are dropped, what was
    begun is undone. A connection that broke is left for the next call to find. Others who write
    wait for what was begun; where its process stands still, the server undoes it in two seconds.
    """

    _session: Mapping[str, int] = {"idle_in_transaction_session_timeout": 2_000}
    _asked: Flight | None = None
    _begun: Flight | None = None

    def ask_ahead(self, statements: Batch) -> bool:
        """Send queries and go on; ``answers`` has what they find. Whether they are on their way.

        Each sees what was committed when it ran; they run in the order in which they are given.
        """
        if self._wire is None or self._wire.closed or self._inside:
            return False
        sent = [self._here(), *(self._sent(statement)[0] for statement in statements)]
        try:
            self._asked = self._reading().start(sent)
        except (Failed, Unreachable):
            return False
        return True

    def answers(self) -> list[Result] | None:
        """What ``ask_ahead`` found; None where that is lost, for whatever reason: ask again.

        Raises FileChanged.
        """
        flight, self._asked = self._asked, None
        wire = self._wire
        if flight is None or wire is None:
            return None
        try:
            results = wire.finish(flight)
        except (Failed, Unreachable):
            return None
        if results is None:
            return None
        self._compare(results[0])
        return results[1:]

    def begin(self, first: Sent, statements: Batch) -> bool:
        """Send what ``write`` sends, but for its commit, and go on. Whether it is on its way."""
        if self._wire is None or self._wire.closed or self._inside or self.read_only:
            return False
        sent = [BEGIN, first]
        for statement in statements:
            sent += self._sent(statement)
        try:
            self._begun = self._writing().start(sent)
        except (Failed, Unreachable):
            return False
        return True

    def commit(self) -> bool:
        """Commit what was begun. False: it was undone, and nothing of it is there.

        Raises as ``write`` does.
        """
        flight, self._begun = self._begun, None
        wire = self._wire
        if flight is None or wire is None:
            return False
        try:
            if wire.finish(flight) is None:
                self._settle(wire)
                return False
            wire.check()
        except Failed as error:
            self._settle(wire)
            raise self._error(error, write=True) from None
        except Unreachable:
            return False  # it never heard of the commit
        self._do(wire, [COMMIT])
        return True

    def forget(self) -> None:
        """Drop the answers, undo what was begun."""
        self._asked = None
        flight, self._begun = self._begun, None
        wire = self._wire
        if flight is None or wire is None or wire.closed:
            return
        try:
            wire.send([ROLLBACK])
        except (Failed, Unreachable):
            wire.close()

    def _reading(self) -> Wire:
        self.forget()
        return super()._reading()

    def _writing(self) -> Wire:
        self.forget()
        return super()._writing()

    def close(self) -> None:
        """See ``PostgresDatabase.close``. What was begun ends with its connection."""
        self._asked = self._begun = None
        super().close()
