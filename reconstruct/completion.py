"""Completion: what has to hold before a recovered tenant may do more.

Each stage has tests of its own, and each test a key by which an operator may waive it. What is
missing is told in sentences that begin with the key.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping

import msgspec
from msgspec import Struct

from journal.acceptance import COMMITTED_ACTION
from journal.admission import MEASURED_OVER, capacity, drain_seconds
from journal.control import TENANT, Control, Opening, Running, Stage
from journal.data import hash_of
from journal.doubting import is_doubtful
from journal.errors import (
    DiskFailed,
    EngineError,
    FenceFailed,
    FileChanged,
    Invalid,
    JournalUnavailable,
    Refused,
)
from journal.lanes import Effect
from journal.log import DECISIONS, Row
from journal.record import Record
from journal.release import is_report, report_of
from journal.standing import poison
from journal.store import tables
from journal.store import work as works
from journal.store.engine import SqlStore
from journal.work import CLAIMABLE, Status, Work
from journal.writepath import loads_of

WAIVABLE = ("owners", "healed", "reconciled", "holds", "trial", "backlog")
"""Keys of the tests that a person may answer for; the others are facts about the files."""

_LET_OUT = frozenset({Stage.EXTERNAL, Stage.OPEN})
_NAMED = 10
_PAGE = 500


class Lacking(Struct, frozen=True):
    """A test that does not hold, by its key, and what to do about it.

    ``soon`` says that it may hold by itself in a while.
    """

    key: str
    detail: str
    soon: bool = False

    @property
    def sentence(self) -> str:
        """The key and the detail, as they are told."""
        return f"{self.key}: {self.detail}"


async def lacking(record: Record, control: Control, stage: Stage) -> list[Lacking]:
    """What is missing for a stage, the ones before it granted. Under the turn lock.

    The heads are compared before any of this is asked. Raises JournalUnavailable.
    """
    try:
        return await _TESTS[stage](record, control)
    except FileChanged:
        raise
    except EngineError as error:
        raise JournalUnavailable(f"the store cannot be read: {error}") from error


def store_of(record: Record) -> SqlStore:
    """The store. Raises Refused without one."""
    if record.store is None:
        raise Refused("the store is missing or unreadable: run `unrewind recover apply`")
    return record.store


# Reading: references agree, and permissions are current.


async def _for_reading(record: Record, _control: Control) -> list[Lacking]:
    """Every revocation that the journal can prove is in the store, incomplete histories included.

    The comparison of heads leaves incomplete entities out. Of those the store must at least hold
    what is continuous: behind it a revoked right would look valid.
    """
    behind: list[str] = []
    flawed = await record.journal().flawed()
    for entity, through in sorted(flawed.items()):
        if await record.journal().chain(entity) is None and await _is_behind(
            record, entity, through
        ):
            behind.append(entity)
    if not behind:
        return []
    return [
        Lacking(
            "permissions",
            f"the store lacks decisions that the journal holds without a gap, of {_names(behind)}: "
            "run `unrewind recover begin`, then `apply`",
        )
    ]


async def _is_behind(record: Record, entity: str, through: int) -> bool:
    found = (await store_of(record).read([tables.read_heads([entity])]))[0]
    head = tables.heads_of(found).get(entity)
    if head is None or head.revision < through:
        return through > 0
    if head.revision > through:
        return False
    near = await record.journal().history(entity, through, through, _NAMED)
    own = [row for row in near if row.digest == head.digest]
    return not own or _other_data(own[0], head.data)


def _other_data(row: Row, data: str) -> bool:
    try:
        return row.head().data != hash_of(data.encode())
    except Invalid:
        return False  # the history ends before a damaged entry, or `verify` names it


# Internal: a write works, and every unresolved piece of work has somebody.


async def _for_internal(record: Record, _control: Control) -> list[Lacking]:
    found = []
    refused = await _try_write(record)
    if refused is not None:
        found.append(Lacking("write", f"the store took no write: {refused}"))
    spoiled: list[str] = []
    async for _, unreadable in _open_work(record):
        spoiled += unreadable
    if spoiled:
        found.append(
            Lacking(
                "owners",
                f"work that cannot be read, so nobody knows whose it is: {_names(spoiled)}; "
                "rebuild the store with `unrewind recover begin` and `apply`, or name it with "
                "--despite owners",
            )
        )
    return found


async def _try_write(record: Record) -> str | None:
    """Write the marker as it stands; why that failed. The journal is tried by what follows."""
    await record.open_for_writing()
    store = store_of(record)
    marker = await record.marker()
    if marker is None:
        return "it has no marker"
    try:
        await store.batch([tables.fence(marker, marker.place, marker.journalled)])
    except (FenceFailed, FileChanged):
        raise
    except DiskFailed as error:
        raise poison(record, f"the store's commit failed: {error}") from error
    except EngineError as error:
        return str(error)
    record.saw()
    return None


async def _open_work(
    record: Record, effect: Effect | None = None
) -> AsyncIterator[tuple[list[Work], Mapping[str, str]]]:
    """Pages of unfinished work, and of each page what cannot be read."""
    after = ""
    while True:
        statement = works.read_open(effect, after, _PAGE)
        rows, spoiled = works.readable_of((await store_of(record).read([statement]))[0])
        if not rows and not spoiled:
            return
        yield rows, spoiled
        after = max([*(row.id for row in rows), *spoiled])


# External: what became of everything that may have left the house is known, or held by name.


async def _for_external(record: Record, control: Control) -> list[Lacking]:
    found = []
    healed = await _of_healing(record, control)
    if healed is not None:
        found.append(healed)
    if await _needs_reconciling(record, control):
        waiting, doubted = 0, 0
        async for rows, spoiled in _open_work(record, Effect.EXTERNAL):
            waiting += len(rows) + len(spoiled)
            for row in rows:
                doubted += await is_doubtful(record, row, control.doubted)
        if waiting:
            found.append(
                Lacking(
                    "reconciled",
                    f"{_count(waiting, 'release is', 'releases are')} open and not reconciled in "
                    f"generation {control.authority.generation}: run `unrewind recover reconcile`",
                )
            )
        if doubted:
            found.append(
                Lacking(
                    "doubted",
                    f"a loss of the journal was accepted, and attempts of "
                    f"{_count(doubted, 'open release', 'open releases')} may have been in it: run "
                    "`unrewind recover reconcile`; nobody can waive this",
                )
            )
    mute = [
        f"lane {name}"
        for name, state in sorted(control.lanes.items())
        if state.running is not Running.ON and not state.reason.strip()
    ]
    mute += [name for name, hold in sorted(control.holds.items()) if not hold.reason.strip()]
    if mute:
        found.append(
            Lacking("holds", f"stopped, and nobody said why: {_names(mute)}; resume or name it")
        )
    return found


async def _of_healing(record: Record, control: Control) -> Lacking | None:
    """What a person has to look at once after a journal was healed; None: somebody has.

    The last words of control may have been lost with the journal's tail, and nobody can prove that
    none were.
    """
    if not control.rebased:
        return None
    entries = [row.entry() for row in await record.journal().control()]
    if any(
        entry.envelope.entity == TENANT and entry.envelope.outcome.state in _LET_OUT
        for entry in entries[control.rebased :]
    ):
        return None
    facts = msgspec.json.decode(entries[control.rebased - 1].body)
    witness = facts.get("witness")
    since = "lately" if witness is None else f"after {witness['at']}"
    tokens = [token.name or token.id for token in control.tokens.values() if not token.revoked]
    lanes = [name for name, state in control.lanes.items() if state.running is not Running.ON]
    return Lacking(
        "healed",
        f"the journal was healed, and what was revoked or stopped {since} may be lost with its "
        f"tail. Look at the tokens in force ({_names(sorted(tokens)) or 'none'}), the stops "
        f"({_names(sorted(control.holds)) or 'none'}) and the lanes that do not run "
        f"({_names(sorted(lanes)) or 'none'}); revoke and stop what should be, then name it with "
        "--despite healed",
    )


async def _needs_reconciling(record: Record, control: Control) -> bool:
    """Whether this generation came from a recovery whose releases were never settled.

    One that was open before has answered for them: what is open now was permitted since.
    """
    generation = control.authority.generation
    if generation == control.histories[0].generation or control.reconciled == generation:
        return False
    return not any(
        envelope.generation == generation and envelope.outcome.state == Stage.OPEN
        for envelope in (row.entry().envelope for row in await record.journal().control())
    )


# Open: what was let out first has ended well, and the backlog is no new outage.


async def _for_open(record: Record, control: Control) -> list[Lacking]:
    found = []
    if control.authority.stage is Stage.EXTERNAL:
        trial = await _of_trial(record)
        if trial is not None:
            found.append(trial)
    late = await _late(record, control)
    if late:
        found.append(
            Lacking(
                "backlog",
                f"{'; '.join(late)}: let it out in portions with `unrewind recover reopen --to "
                "external --lanes … --rate …`, or name it with --despite backlog",
            )
        )
    return found


async def _of_trial(record: Record) -> Lacking | None:
    """What is wrong with what the stage external has let out so far; None: nothing."""
    position, opening = await _let_out_since(record)
    tried, unreadable = await _committed_since(record, position)
    if unreadable:
        return Lacking(
            "trial",
            f"entries at {_names(unreadable)} cannot be read, so nobody knows all that was let "
            "out: `unrewind verify` says more; name it with --despite trial",
        )
    wanted = sorted(tried.union(opening.releases))
    rows = works.rows_of((await store_of(record).read([works.read_work(wanted)]))[0])
    strange = sorted(set(opening.releases) - {row.id for row in rows})
    if strange:
        return Lacking(
            "trial",
            f"there is no release {_names(strange)}: name some that exist with --to external "
            "--releases, or name it with --despite trial",
        )
    unknown = [row.id for row in rows if row.status in {Status.UNKNOWN, Status.DEAD}]
    if unknown:
        return Lacking(
            "trial",
            f"its outcome is not known, of {_names(unknown)}: settle it with `unrewind releases "
            "settle`, or name it with --despite trial",
        )
    under_way = [row.id for row in rows if row.id in tried and not row.over]
    if under_way:
        return _yet(f"let out and not ended yet: {_names(under_way)}")
    waiting = [row.id for row in rows if not row.over]
    if waiting:
        return _yet(f"named and not let out yet: {_names(waiting)}")
    if tried:
        return None
    if await _waits_in(record, opening.lanes):
        return _yet(f"nothing of {_names([*opening.lanes])} has been let out yet")
    external = tuple(name for name, lane in record.settings.lanes.items() if lane.external)
    if await _waits_in(record, external):
        return Lacking(
            "trial",
            "nothing was tried: what was named had ended before or does not wait, and other "
            "releases do; name some of them with --to external, or name it with --despite trial",
        )
    return None


def _yet(detail: str) -> Lacking:
    return Lacking("trial", f"{detail}; is the service running?", soon=True)


async def _let_out_since(record: Record) -> tuple[int, Opening]:
    """Where the journal stood when the stage external began, and all that it has let out since."""
    position, lanes, releases = 0, set[str](), set[str]()
    for row in reversed(await record.journal().control()):
        envelope = row.entry().envelope
        if envelope.entity != "control/tenant":
            continue
        if envelope.outcome.state != Stage.EXTERNAL:
            break
        position = row.position
        facts = msgspec.json.decode(row.body).get("opening")
        if facts is not None:
            opening = msgspec.convert(facts, Opening)
            lanes.update(opening.lanes)
            releases.update(opening.releases)
    return position, Opening(tuple(sorted(lanes)), tuple(sorted(releases)))


async def _committed_since(record: Record, position: int) -> tuple[set[str], list[str]]:
    """The releases of which the journal took a commitment after a position.

    With the positions, in words, of the entries that cannot be read.
    """
    found: set[str] = set()
    unreadable: list[str] = []
    while rows := await record.journal().feed(position, _PAGE):
        position = rows[-1].position
        for row in rows:
            if row.stream != DECISIONS:
                continue
            try:
                envelope = row.entry().envelope
                if envelope.action == COMMITTED_ACTION and is_report(
                    envelope.action, envelope.body.type
                ):
                    found.add(report_of(row.body).release)
            except Invalid:
                unreadable.append(f"position {row.position}")
    return found, unreadable


async def _waits_in(record: Record, lanes: tuple[str, ...]) -> bool:
    counts = works.counts_of((await store_of(record).read([works.READ_COUNTS]))[0])
    return any(count.lane in lanes and count.status in CLAIMABLE for count in counts)


async def _late(record: Record, control: Control) -> list[str]:
    """Lanes whose backlog would take longer than it may, as fast as they are declared to be.

    While a tenant is closed nothing completes, so what was measured says nothing; lanes that have
    been let out without a rate show what they can.
    """
    counts, flow = await store_of(record).read([works.READ_COUNTS, works.read_flow(MEASURED_OVER)])
    loads, _ = loads_of(counts, flow)
    let_out = () if control.opening is None or control.opening.rate else control.opening.lanes
    found = []
    for name, lane in sorted(record.settings.lanes.items()):
        state = control.lanes.get(name)
        load = loads.get(name)
        if load is None or not lane.tolerance:
            continue
        if state is not None and state.running is not Running.ON:
            continue
        measured = load.completion if name in let_out and load.completion > 0 else capacity(lane)
        drain = drain_seconds(load.waiting, measured, load.arrival)
        if drain is None or drain > lane.tolerance:
            takes = "is never done" if drain is None else f"takes {drain:.0f} s"
            found.append(f"what waits in lane {name} {takes}, and it may take {lane.tolerance:g} s")
    return found


def _names(names: list[str]) -> str:
    more = "" if len(names) <= _NAMED else f" and {len(names) - _NAMED} more"
    return ", ".join(names[:_NAMED]) + more


def _count(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"


_TESTS = {
    Stage.READING: _for_reading,
    Stage.INTERNAL: _for_internal,
    Stage.EXTERNAL: _for_external,
    Stage.OPEN: _for_open,
}
