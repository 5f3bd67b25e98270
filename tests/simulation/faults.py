"""Faults of the ports: what the engines declare may happen, where the workload asks for it.

An *arm* waits for so many statements of its kind and goes off at the next. Whatever goes off goes
off before the statement has had its effect, or right after it.
"""

from __future__ import annotations

import json
import os
import sqlite3
from typing import TYPE_CHECKING, Any

from tests.simulation import machine
from tests.simulation.connections import Connection, failure, rolled_back
from tests.simulation.hub import Process
from tests.simulation.promises import Line, lines_of

if TYPE_CHECKING:
    from tests.simulation.world import World

KINDS = {
    "refused": sqlite3.SQLITE_BUSY,
    "disk": sqlite3.SQLITE_IOERR,
    "full": sqlite3.SQLITE_FULL,
    "unanswered": sqlite3.SQLITE_BUSY,
    "disk-after": sqlite3.SQLITE_IOERR,
    "kill": 0,
    "kill-after": 0,
    "freeze": 0,
    "freeze-after": 0,
}
"""What may happen at a statement; those that end in ``after`` and *unanswered*, after it."""

_AFTER = frozenset({"unanswered", "disk-after", "kill-after", "freeze-after"})
_AWAY = (sqlite3.SQLITE_CANTOPEN, "it is away")


class Arm:
    """One fault that waits. ``process`` None: of any process that serves."""

    def __init__(
        self, role: str, moment: str, left: int, kind: str, process: Process | None, name: str
    ) -> None:
        self.role, self.moment, self.left, self.kind = role, moment, left, kind
        self.process, self.name = process, name

    def fits(self, connection: Connection, sql: str) -> bool:
        """Whether this statement counts for it."""
        if self.role not in {"any", connection.role}:
            return False
        if self.moment == "commit" and sql != "COMMIT":
            return False
        process = machine.process()
        if self.process is not None:
            return process is self.process
        return process.name.startswith("serve")


class Faults:
    """See ``connections.Ports``."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.arms: list[Arm] = []
        self.away: dict[str, float] = {}
        self.slow: dict[str, float] = {}
        self._entries: dict[int, list[Line]] = {}
        self._authority: dict[int, tuple[Any, ...]] = {}
        self._stored: dict[int, list[str]] = {}
        self._due: tuple[Arm, Connection] | None = None

    # Arming.

    def arm(self, role: str, moment: str, left: int, kind: str) -> None:
        """Have something happen at a service's statement."""
        self.arms.append(Arm(role, moment, left, kind, None, f"{role} {moment}"))

    def arm_kill(self, process: Process, name: str) -> None:
        """Kill this process at one of its next statements."""
        left = int(2 ** self.world.delay(9.0))
        moment = "commit" if self.world.roll(0.3) else "any"
        kind = "kill-after" if self.world.roll(0.5) else "kill"
        self.arms.append(Arm("any", moment, left if moment == "any" else 1, kind, process, name))

    def calm(self) -> None:
        """Nothing happens any more."""
        self.arms.clear()
        self.away.clear()
        self.slow.clear()

    # As connections tell it.

    def opening(self, role: str) -> None:
        """See ``connections.Ports.opening``."""
        if role == "journal":
            self.world.disks.look()
        self._check_away(role)

    def _check_away(self, role: str) -> None:
        until = self.away.get(role)
        if until is not None and machine.hub().now < until and self._is_served():
            raise failure(*_AWAY)

    @staticmethod
    def _is_served() -> bool:
        """Those who look from outside are no part of a fault: they are killed instead."""
        return True

    def before(self, connection: Connection, sql: str) -> None:
        """See ``connections.Ports.before``."""
        if connection.role == "other":
            return
        if self.away:
            self._check_away(connection.role)
        if self.slow and self.slow.get(connection.role, 0.0) > machine.hub().now:
            machine.hub().sleep(self.world.delay(0.2))
        if self.arms:
            self._due = None
            for arm in self.arms:
                if arm.fits(connection, sql):
                    arm.left -= 1
                    if arm.left < 0:
                        self.arms.remove(arm)
                        self._go_off(arm, connection, sql)
                        break

    def _go_off(self, arm: Arm, connection: Connection, sql: str) -> None:
        self.world.count(f"fault:{arm.kind}")
        self.world.note("fault", kind=arm.kind, at=arm.name, sql=sql[:24])
        if arm.kind in _AFTER:
            self._due = (arm, connection)
            return
        self._happen(arm, connection, sql)

    def _happen(self, arm: Arm, connection: Connection, sql: str) -> None:
        process = machine.process()
        if arm.kind.startswith("kill"):
            process.kill()
        elif arm.kind.startswith("freeze"):
            self.world.freeze(process, self.world.delay(30.0))
            machine.hub().sleep(0.0)
        else:
            # No engine leaves a transaction open of which it says that it could not be begun.
            if sql.startswith("BEGIN") or (sql == "COMMIT" and arm.kind not in _AFTER):
                rolled_back(connection)
            raise failure(KINDS[arm.kind], f"simulated: {arm.kind}")

    def after(self, connection: Connection, sql: str, parameters: Any) -> None:
        """See ``connections.Ports.after``."""
        if connection.role == "journal":
            self._follow_journal(connection, sql, parameters)
        elif connection.role == "store":
            self._follow_store(connection, sql, parameters)
        if self._due is not None and self._due[1] is connection:
            arm, _ = self._due
            self._due = None
            self._happen(arm, connection, sql)

    # What was committed.

    def _follow_journal(self, connection: Connection, sql: str, parameters: Any) -> None:
        key = id(connection)
        if sql.startswith("INSERT INTO entries"):
            self._entries.setdefault(key, []).extend(lines_of(parameters))
        elif sql.startswith("INSERT INTO authority"):
            self._authority[key] = tuple(parameters)
        elif sql.startswith(("BEGIN", "ROLLBACK")):
            self._entries.pop(key, None)
            self._authority.pop(key, None)
        elif sql == "COMMIT" and (key in self._entries or key in self._authority):
            lines, authority = self._entries.pop(key, []), self._authority.pop(key, None)
            if os.stat(connection.path).st_ino == connection.inode:  # noqa: PTH116 - hot
                self.world.journalled(lines, authority)

    @property
    def appending(self) -> bool:
        """Whether a commit to the journal is under way."""
        return bool(self._entries)

    def _follow_store(self, connection: Connection, sql: str, parameters: Any) -> None:
        key = id(connection)
        if sql.startswith("INSERT INTO unrewind_decisions"):
            digests = [bytes(value).hex() for value in parameters[1::4]]
            self._stored.setdefault(key, []).extend(digests)
        elif sql.startswith(("BEGIN", "ROLLBACK")):
            self._stored.pop(key, None)
        elif sql == "COMMIT" and key in self._stored:
            how = self.world.disks.behind.get(str(connection.inode))
            digests = self._stored.pop(key)
            if how is not None and not self.world.recovering:
                self.world.mirror.foreign.update(dict.fromkeys(digests, how))
            self.world.count("store commits")


def say(value: Any) -> str:
    """A value as a trace has it."""
    return json.dumps(value, separators=(",", ":"), default=str)
