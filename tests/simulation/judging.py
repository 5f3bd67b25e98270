"""Judging a world at its turning points: after a recovery, at rest, and when all has ended."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

from api.opening import ask
from journal import Acceptance
from journal.accounts import accounts_of
from journal.control import Stage
from journal.errors import UnrewindError
from journal.ledger import Fate
from journal.record import Record
from tests.simulation import connections, machine
from tests.simulation.disks import journal_lines, read
from tests.simulation.promises import Broken
from tests.simulation.tenant import INSIDE, PULLED
from tests.support.whole import verify_files

if TYPE_CHECKING:
    from tests.simulation.world import World

_OPEN = (
    "SELECT id, lane, status, step, owner, last_error FROM unrewind_work"
    " WHERE finished IS NULL ORDER BY number"
)
_HEADS = "SELECT entity, revision, lower(hex(digest)), data FROM unrewind_entities ORDER BY entity"
_ROUNDS = 80
_PATIENCE = 30.0
_SOON = 10


def state(world: World) -> None:
    """The store's rows are those of the journal's decisions, no more and no less (P2, P11)."""
    stored = {
        entity: (revision, digest)
        for entity, revision, digest, _ in read(world.settings.store_file, _HEADS)
    }
    wanted = {
        entity: (lines[-1].revision, lines[-1].digest)
        for entity, lines in world.mirror.entities.items()
        if lines
    }
    for entity in sorted({*stored, *wanted}):
        if stored.get(entity) != wanted.get(entity):
            raise Broken(
                "P11",
                f"{entity} stands at {stored.get(entity)}, the journal says {wanted.get(entity)}",
            )


def come_to_rest(world: World) -> None:
    """Recovery ends, every caller gets an answer, every lane drains. Raises Broken."""
    recover(world)
    for resume in world.paused:
        resume()
    for wish in [*world.clients.open.values()]:
        world.clients.repeat(wish)
        if wish.id not in world.clients.told:
            raise Broken("liveness", f"{wish.id} gets no answer")
    _acknowledged_are_known(world)
    for row in _drained(world):
        if row[2] not in {"dead", "unknown"} or not row[4]:
            raise Broken("liveness", f"work never ends: {row}")


def recover(world: World) -> None:
    """Have the operator bring the tenant back. Raises Broken where that does not come about."""
    for _ in range(_ROUNDS):
        found = world.operator.look()
        if found is not None and found.stage == Stage.OPEN and found.stopped is None:
            return
        world.operator.tend()
        world.hub.sleep(_PATIENCE / 3)
    raise Broken("liveness", f"the tenant stays closed: {world.operator.last}")


def _drained(world: World) -> list[tuple[Any, ...]]:
    """Have workers and the operator do what there is to do; what does not come to its end."""
    left: list[tuple[Any, ...]] = []
    for number in range(_ROUNDS):
        left = read(world.settings.store_file, _OPEN)
        world.note("left", rows=left)
        if not left:
            break
        for lane in (*PULLED, INSIDE):
            if any(row[1] == lane for row in left):
                world.workers.pull(lane, "worker-0", 8, again=False)
        world.operator.tend()
        world.hub.sleep(_PATIENCE if number < _SOON else 4 * _PATIENCE)
    return left


def _acknowledged_are_known(world: World) -> None:
    """Every decision that was acknowledged is still there (P2)."""
    for identity, answer in world.clients.told.items():
        if isinstance(answer, Acceptance):
            line = world.mirror.operations.get(identity)
            if line is None or line.digest != answer.digest:
                raise Broken("P2", f"{identity} was acknowledged, and the journal lost it")


def files(world: World) -> None:
    """What lies on the disks in the end (P2, P10, P12)."""
    machine.present(None)
    connections.guard(None)
    world.mirror.compare(journal_lines(world.settings.journal_file))
    state(world)
    # Rows that had ended when the table was put back are found by `verify`, and by no turn.
    findings = verify_files(world.settings, work=not world.counts["rewind:table"])
    if findings:
        raise Broken("P10", f"verification finds: {findings[:3]}")
    _evidence(world)
    _fates(world)


def _evidence(world: World) -> None:
    """Evidence bundles are what their manifests say (P10)."""
    home = world.settings.evidence_home
    for manifest in sorted(home.glob("*/evidence.json")) if home.exists() else ():
        digest = hashlib.sha256(manifest.read_bytes()).hexdigest().encode()
        world.count("bundles")
        if manifest.parent.name.endswith(".partial"):
            continue
        if not any(digest in line.body for line in world.mirror.lines if line.stream == "control"):
            world.count("bundles unnamed")


def _fates(world: World) -> None:
    """Every accepted operation has one of four ends, or an owner and a deadline (P12)."""

    async def read_all(record: Record) -> list[object]:
        named = [
            name for name, answer in world.clients.told.items() if isinstance(answer, Acceptance)
        ]
        rows = await record.journal().operations(named)
        return [*(await accounts_of(record, rows))]

    try:
        accounts = ask(world.settings, read_all)
    except UnrewindError as error:
        raise Broken("P12", f"nobody can tell: {error}") from error
    for account in accounts:
        fate = account.fate  # type: ignore[attr-defined]
        world.count(f"fate:{fate.fate}")
        if fate.fate is Fate.UNRESOLVED and not (fate.owner and fate.deadline):
            raise Broken("P12", f"{account} is nobody's")
