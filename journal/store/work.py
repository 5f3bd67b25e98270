"""SQL over the store's tables of work (SQLite, D1)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from journal.entry import check_time
from journal.errors import HistoryIncomplete, Invalid
from journal.lanes import Effect
from journal.sql import Result, Rows, Statement
from journal.work import Work

COLUMNS: tuple[str, ...] = Work.__struct_fields__
_NAMES = ", ".join(COLUMNS)
_READ = {"data": "iif(typeof(data) = 'text', data, NULL)"}
"""JSON holds no bytes: where they took the place of text they would fail the whole statement."""

_ARRAY = f"json_array({', '.join([_READ.get(name, name) for name in COLUMNS])})"

_DERIVED = [name for name in COLUMNS if name != "id"]

_decode = msgspec.json.Decoder(list[Work]).decode

NOW = "strftime('%Y-%m-%dT%H:%M:%f999Z', 'now')"
"""Database time, in the entry format's form: the end of the millisecond, for SQLite tells no more.

What was recorded within it is due, and does not lie ahead.
"""


def later(seconds: float) -> str:
    """Database time in that many seconds, as an SQL expression."""
    return f"strftime('%Y-%m-%dT%H:%M:%f000Z', 'now', '{seconds:+.3f} seconds')"


READ_NOW = Statement(f"SELECT {NOW}")


class LaneCount(Struct, frozen=True, array_like=True):
    """How much of a lane stands in one status, in items and by weight."""

    lane: str
    status: str
    items: int
    weight: float


_decode_each = msgspec.json.Decoder(list[msgspec.Raw]).decode
_decode_one = msgspec.json.Decoder(Work).decode
_EFFECTS = frozenset(Effect)
_TIMES = ("due", "created", "committed", "claimed", "started", "heartbeat", "sweep_at")


def rows_of(rows: Result) -> list[Work]:
    """The rows of work from any of the reading statements here.

    Raises HistoryIncomplete for a row that somebody spoiled: nothing can be decided about it.
    """
    try:
        return _decode(rows[0][0])
    except msgspec.MsgspecError as error:
        raise HistoryIncomplete(f"a row of unrewind_work cannot be read: {error}") from None


def readable_of(rows: Result) -> tuple[list[Work], dict[str, str]]:
    """The rows that can be read, and what is wrong with each of the others, by ID.

    One row that somebody spoiled must not keep the ones behind it from leaving.
    """
    found: list[Work] = []
    spoiled: dict[str, str] = {}
    for raw in _decode_each(rows[0][0]):
        try:
            row = _decode_one(raw)
            _check(row)
        except (msgspec.MsgspecError, Invalid) as error:
            spoiled[str(msgspec.json.decode(raw)[0])] = str(error)
        else:
            found.append(row)
    return found, spoiled


def _check(row: Work) -> None:
    """Refuse what types alone do not tell. Raises Invalid."""
    if row.effect not in _EFFECTS:
        raise Invalid(f"its effect is {row.effect}")
    for name in _TIMES:
        value = getattr(row, name)
        if value is not None:
            check_time(name, value)


def park(identity: str, why: str, attempts: int, backoff: float) -> Statement:
    """Count a failure of a row that cannot be read; a dead letter once its budget is spent."""
    return Statement(
        "UPDATE unrewind_work SET failures = failures + 1, last_error = ?,"
        f" due = CASE WHEN failures + 1 < ? THEN {later(backoff)} END, step = 'cannot be read',"
        " status = CASE WHEN failures + 1 >= ? THEN 'dead' ELSE status END WHERE id = ?",
        (why, attempts, attempts, identity),
    )


def _select(where: str, order: str = "", *parameters: object) -> Statement:
    return Statement(
        f"SELECT json_group_array({_ARRAY}) FROM (SELECT * FROM unrewind_work"
        f" WHERE {where} {order}) w",
        parameters,
    )


def _json(values: Iterable[object]) -> str:
    return msgspec.json.encode(list(values)).decode()


_CLAIMS = "SELECT value ->> 0, CAST(value ->> 1 AS BIGINT) FROM json_each(?)"


def read_work(ids: Iterable[str]) -> Statement:
    """Rows by ID."""
    return _select("id IN (SELECT value FROM json_each(?))", "", _json(ids))


def read_of_entities(entities: Iterable[str], versions: Iterable[tuple[str, str]]) -> Statement:
    """What is open of these entities, and whatever there is of these versions of theirs."""
    return Statement(
        f"SELECT json_group_array({_ARRAY}) FROM (SELECT * FROM unrewind_work"
        " WHERE entity IN (SELECT value FROM json_each(?)) AND finished IS NULL"
        " UNION SELECT w.* FROM json_each(?) v JOIN unrewind_work w"
        "  ON w.entity = v.value ->> 0 AND w.version = v.value ->> 1) w",
        (_json(entities), _json(versions)),
    )


def read_all_of(entities: Iterable[str]) -> Statement:
    """Every row of these entities."""
    return _select("entity IN (SELECT value FROM json_each(?))", "", _json(sorted(entities)))


def read_open(effect: Effect | None, after: str, limit: int) -> Statement:
    """What is not over, of one effect or of all, above an ID and in the order of the IDs."""
    where, parameters = "finished IS NULL AND id > ?", [after]
    if effect is not None:
        where += " AND effect = ?"
        parameters.append(str(effect))
    return _select(where, "ORDER BY id LIMIT ?", *parameters, limit)


def read_running(after: str, limit: int) -> Statement:
    """What is in progress, above an ID and in the order of the IDs."""
    return _select("status = 'running' AND id > ?", "ORDER BY id LIMIT ?", after, limit)


def read_claimable(
    lane: str,
    limit: int,
    now: str,
    only: Sequence[str] = (),
    among: Sequence[str] | None = None,
) -> Statement:
    """What may be picked up in a lane: due, oldest first, commands only in their list's order.

    With ``only`` nothing but these commands and items, due or not; with ``among`` nothing else than
    these, when they are due.
    """
    where = "lane = ? AND due <= ?"
    named = [] if among is None else [_json(among)]
    if among is not None:
        where = "id IN (SELECT value FROM json_each(?)) AND +lane = ? AND due <= ?"
    if only:
        # The plus keeps the lane's index out of it: a few IDs are quicker found than what waits.
        where = "+lane = ? AND effect <> 'external' AND id IN (SELECT value FROM json_each(?))"
        named = []
    return _select(
        f"{where} AND status IN ('ready', 'retry') AND NOT EXISTS (SELECT 1"
        " FROM unrewind_work b WHERE unrewind_work.effect = 'internal' AND b.effect = 'internal'"
        " AND b.finished IS NULL AND unrewind_work.sequence > 0"
        " AND b.sequence = unrewind_work.sequence AND b.place < unrewind_work.place)",
        "ORDER BY due, sequence, place LIMIT ?",
        *named,
        lane,
        _json(only) if only else now,
        limit,
    )


def read_askable(lane: str, limit: int) -> Statement:
    """Releases of a lane about which its receiver is to be asked now."""
    return _select(
        f"lane = ? AND status IN ('pending', 'unknown') AND due IS NOT NULL AND due <= {NOW}",
        "ORDER BY due LIMIT ?",
        lane,
        limit,
    )


def read_due(lanes: Iterable[str]) -> Statement:
    """Whether anything is to be done now that needs no worker to ask for it.

    Work of these lanes is due, a receiver is to be asked, or something's time is over.
    """
    return Statement(
        "SELECT CASE WHEN EXISTS (SELECT 1 FROM unrewind_work WHERE status IN ('ready', 'retry')"
        f" AND lane IN (SELECT value FROM json_each(?)) AND due <= {NOW})"
        " OR EXISTS (SELECT 1 FROM unrewind_work WHERE status IN ('pending', 'unknown')"
        f" AND lane IN (SELECT value FROM json_each(?)) AND due IS NOT NULL AND due <= {NOW})"
        f" OR EXISTS (SELECT 1 FROM unrewind_work WHERE status = 'running' AND sweep_at <= {NOW})"
        " THEN 1 ELSE 0 END",
        (_json(lanes), _json(lanes)),
    )


def postpone(ids: Iterable[str], seconds: float) -> Statement:
    """Ask about these releases again no sooner than this."""
    return Statement(
        f"UPDATE unrewind_work SET due = {later(seconds)}"
        " WHERE status IN ('pending', 'unknown') AND id IN (SELECT value FROM json_each(?))",
        (_json(ids),),
    )


def read_expired(limit: int) -> Statement:
    """What is in progress beyond its time, oldest first."""
    return _select(f"status = 'running' AND sweep_at <= {NOW}", "ORDER BY sweep_at LIMIT ?", limit)


def read_page(
    lane: str, status: str | None, entity: str | None, after: int, limit: int
) -> Statement:
    """A page of a lane's rows in the order in which they were made, with that order's number."""
    where, parameters = ["lane = ?", "number > ?"], [lane, after]
    for column, value in (("status", status), ("entity", entity)):
        if value is not None:
            where.append(f"{column} = ?")
            parameters.append(value)
    return select_numbered(" AND ".join(where), "ORDER BY number LIMIT ?", *parameters, limit)


def select_numbered(where: str, order: str = "", *parameters: object) -> Statement:
    """Rows with their numbers, as ``page_of`` takes them."""
    return Statement(
        f"SELECT json_group_array(json_array(number, {_ARRAY})) FROM"
        f" (SELECT * FROM unrewind_work WHERE {where} {order}) w",
        parameters,
    )


_decode_page = msgspec.json.Decoder(list[tuple[int, Work]]).decode
_decode_numbered = msgspec.json.Decoder(list[tuple[int, msgspec.Raw]]).decode
_KINDS = [field.type for field in msgspec.structs.fields(Work)]


def page_of(rows: Result) -> list[tuple[int, Work]]:
    """The rows of ``read_page`` with their numbers; of a spoiled one, what can be shown of it."""
    try:
        return _decode_page(rows[0][0])
    except msgspec.MsgspecError:
        return [(number, _shown(raw)) for number, raw in _decode_numbered(rows[0][0])]


def _shown(raw: msgspec.Raw) -> Work:
    try:
        return _decode_one(raw)
    except msgspec.MsgspecError:
        values = msgspec.json.decode(raw)
        return Work(*map(_fitting, values, _KINDS))


def _fitting(value: Any, kind: Any) -> Any:
    """The value, or what stands for it where a row has one of another type."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.MsgspecError:
        return "" if value is None else str(value) if kind not in {int, float} else kind(0)


def read_of_operation(operation: str, entity: str) -> Statement:
    """What one operation's decision made."""
    return _select("entity = ? AND operation = ?", "ORDER BY place", entity, operation)


def write_work(rows: Sequence[Work]) -> Rows:
    """Put rows as they are."""
    return Rows(
        f"INSERT INTO unrewind_work ({_NAMES}) VALUES {{rows}} ON CONFLICT (id) DO UPDATE SET "
        + ", ".join(f"{name} = excluded.{name}" for name in _DERIVED),
        [msgspec.structs.astuple(row) for row in rows],
    )


def put_while(before: Work, after: Work) -> Statement:
    """Put a row as it is to stand, while it has the status and the claim that it was read with."""
    return Statement(
        "UPDATE unrewind_work SET "
        + ", ".join(f"{name} = ?" for name in _DERIVED)
        + " WHERE id = ? AND status = ? AND lease = ?",
        (
            *(getattr(after, name) for name in _DERIVED),
            before.id,
            before.status,
            before.lease,
        ),
    )


def hold(identity: str, why: str, seconds: float) -> Statement:
    """Set waiting work aside for a while, with the reason, so that what is behind it can leave."""
    return Statement(
        f"UPDATE unrewind_work SET step = ?, due = {later(seconds)}"
        " WHERE id = ? AND status IN ('ready', 'retry')",
        (why, identity),
    )


def let_go(why: str) -> Statement:
    """Bring back what was set aside for this reason."""
    return Statement(
        f"UPDATE unrewind_work SET step = 'waits to be picked up', due = {NOW}"
        " WHERE status IN ('ready', 'retry') AND step = ?",
        (why,),
    )


def beat(claims: Iterable[tuple[str, int]], sweep_after: float) -> Statement:
    """A sign of life for claims that still are the newest ones."""
    return Statement(
        f"UPDATE unrewind_work SET heartbeat = {NOW}, sweep_at = {later(sweep_after)}"
        " WHERE status = 'running' AND (id, lease) IN"
        f" ({_CLAIMS})",
        (_json(claims),),
    )


def set_step(claims: Iterable[tuple[str, int]], step: str) -> Statement:
    """What a claim is about to do, written before it does it."""
    return Statement(
        f"UPDATE unrewind_work SET step = ?, started = coalesce(started, {NOW}), heartbeat = {NOW}"
        " WHERE status = 'running' AND (id, lease) IN"
        f" ({_CLAIMS})",
        (step, _json(claims)),
    )


def read_claims(claims: Iterable[tuple[str, int]]) -> Statement:
    """Those of these claims that still are the newest ones and in progress."""
    return _select(
        f"status = 'running' AND (id, lease) IN ({_CLAIMS})",
        "",
        _json(claims),
    )


READ_COUNTS = Statement("SELECT lane, status, items, weight FROM unrewind_counts WHERE items > 0")


def counts_of(rows: Result) -> list[LaneCount]:
    """The counters from READ_COUNTS."""
    return [LaneCount(*row) for row in rows]


def read_flow(seconds: int) -> Statement:
    """Weight that arrived in and left each lane lately, with the seconds that were looked at."""
    return Statement(
        "SELECT lane, sum(arrived), sum(finished),"
        " (strftime('%s', 'now') / 10 - min(bucket) + 1) * 10 FROM unrewind_flow"
        " WHERE bucket > (strftime('%s', 'now') - ?) / 10 GROUP BY lane",
        (seconds,),
    )


READ_OLDEST = """
SELECT min(due) FROM unrewind_work WHERE lane = ? AND status IN ('ready', 'retry')
"""


def read_oldest(lane: str) -> Statement:
    """When the oldest waiting work of a lane was due."""
    return Statement(READ_OLDEST, (lane,))


def read_budgets(names: Iterable[str]) -> Statement:
    """Tokens left of rate budgets, with the Unix time of their last refill and the present one."""
    return Statement(
        "SELECT name, tokens, at, (julianday('now') - 2440587.5) * 86400.0 FROM unrewind_budgets"
        " WHERE name IN (SELECT value FROM json_each(?))",
        (_json(names),),
    )


UNIX_NOW = Statement("SELECT (julianday('now') - 2440587.5) * 86400.0")


READ_BUDGETS_AHEAD = Statement(
    "SELECT name, tokens FROM unrewind_budgets WHERE at > (julianday('now') - 2440587.5) * 86400.0"
)
"""Rate budgets whose last refill lies in the future."""


_PICKED_UP = (
    "status = 'running' AND sweep_at > '' AND effect = 'external' AND step GLOB 'picked up*'"
)
COUNT_PICKED_UP = Statement(f"SELECT count(*) FROM unrewind_work WHERE {_PICKED_UP}")
DOUBT_STEPS = Statement(
    f"UPDATE unrewind_work SET started = coalesce(started, {NOW}),"
    f" step = 'perhaps further than: ' || step WHERE {_PICKED_UP}"
)
"""Take no attempt for surely not made any more."""


def write_budget(name: str, tokens: float, at: float) -> Statement:
    """Keep what is left of a rate budget."""
    return Statement(
        "INSERT INTO unrewind_budgets VALUES (?, ?, ?)"
        " ON CONFLICT (name) DO UPDATE SET tokens = excluded.tokens, at = excluded.at",
        (name, tokens, at),
    )


def write_sweep(moved: int, absorbed: int, process: int) -> Statement:
    """Note a sweep that came to its end."""
    return Statement(
        f"INSERT INTO unrewind_sweeps VALUES (1, {NOW}, ?, ?, ?, ?) ON CONFLICT (one) DO UPDATE SET"
        " succeeded = excluded.succeeded, moved = excluded.moved,"
        " total = unrewind_sweeps.total + excluded.total, absorbed = excluded.absorbed,"
        " process = excluded.process",
        (moved, moved, absorbed, process),
    )


READ_SWEEP = Statement(
    "SELECT succeeded, moved, total, absorbed, process,"
    " (julianday('now') - julianday(succeeded)) * 86400.0 FROM unrewind_sweeps"
)


def forget(keep: float, limit: int) -> list[Statement]:
    """Drop what nobody needs any more: done commands and items, old rates, remembered callbacks.

    Releases stay, since their IDs must be known for ever; dead letters stay until they are drained.
    """
    return [
        Statement(
            "DELETE FROM unrewind_work WHERE id IN (SELECT id FROM unrewind_work"
            " WHERE effect <> 'external' AND status IN ('done', 'discarded')"
            f" AND finished < {later(-keep)} LIMIT ?)",
            (limit,),
        ),
        Statement("DELETE FROM unrewind_flow WHERE bucket < strftime('%s', 'now') / 10 - 360"),
        Statement(f"DELETE FROM unrewind_callbacks WHERE seen < {later(-86400)}"),
    ]


def remember_callback(receiver: str, identity: str) -> Statement:
    """Remember a callback's ID; a constraint refuses one that was seen."""
    return Statement(f"INSERT INTO unrewind_callbacks VALUES (?, ?, {NOW})", (receiver, identity))


def discard_waiting(lane: str) -> Statement:
    """Discard what waits in a lane that is switched off; the counters keep how much it was.

    Only what may be lost: the lane may have been declared for other work since, or before.
    """
    return Statement(
        f"UPDATE unrewind_work SET status = 'discarded', finished = {NOW}, due = NULL,"
        " step = 'discarded: the lane is switched off'"
        " WHERE lane = ? AND effect = 'best-effort' AND status IN ('ready', 'retry')",
        (lane,),
    )


def wake(ids: Iterable[str]) -> Statement:
    """Have the receiver asked about these releases now."""
    return Statement(
        f"UPDATE unrewind_work SET due = {NOW} WHERE status IN ('pending', 'unknown')"
        " AND id IN (SELECT value FROM json_each(?))",
        (_json(ids),),
    )


def read_claim(operation: str) -> Statement:
    """The rows that a claim holds."""
    return _select("claim = ? AND status = 'running'", "ORDER BY place", operation)


def delete_derived(entities: Iterable[str], above: int) -> Statement:
    """Drop the work of entities that are about to be rebuilt, as far as decisions bring it back.

    Commands of decisions that stand are kept with what became of them; a rebuild runs no mail
    again that was sent years ago.
    """
    return Statement(
        "DELETE FROM unrewind_work WHERE entity IN (SELECT value FROM json_each(?))"
        " AND (effect = 'external' OR sequence > ?)",
        (_json(sorted(entities)), above),
    )
