"""P10: a scan of the file says nothing that a walk of it would not say, and hides nothing."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from journal import Settings
from journal.entry import digest_of
from journal.errors import Damaged
from journal.places import LogFile, LogPlace
from reconstruct import scanning, walking
from reconstruct.scanning import Scanned, Unsure
from reconstruct.walking import Walked, nothing, verify_journal
from tests.reconstruct.scenes import Scene, raw
from tests.soak.processes import LONG
from tests.support.tenants import make_settings

ENTITIES = 4
NUMBERS = ("sequence", "revision")
BYTES = ("history", "digest", "body")
TEXTS = ("entity", "operation", "envelope")
WHERE = "UPDATE entries SET {} WHERE position = ?"


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    """A journal in which four entities go on through two histories, closed."""
    found = make_settings(tmp_path_factory.mktemp("written"))
    scene = Scene(found)
    scene.fill(10, entities=ENTITIES)
    scene.recover()
    scene.fill(10, entities=ENTITIES)
    scene.settle()
    scene.close()
    return found


@pytest.fixture
def place(written: Settings, tmp_path: Path) -> Copy:
    """A copy of it to spoil."""
    return copied(written, tmp_path)


class Copy(LogFile):
    """A copy of a journal's file."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.path = path


def copied(written: Settings, folder: Path) -> Copy:
    file = folder / "journal.db"
    shutil.copyfile(written.journal_file, file)
    return Copy(file)


def walked(place: LogPlace) -> Walked:
    """What the walk alone says."""
    return walking._by_walk(place, "main", 1, nothing, {}, parallel=False)


def size(place: Copy) -> int:
    with closing(sqlite3.connect(place.path)) as file:
        last: int = file.execute("SELECT max(position) FROM entries").fetchone()[0]
    return last


@st.composite
def spoilt(draw: st.DrawFn) -> tuple[str, tuple[Any, ...]]:
    """One change of one row, by a share of the journal's length that says which."""
    at = draw(st.integers(1, 40))
    kind = draw(
        st.sampled_from(
            ["number", "bytes", "text", "type", "gone", "swap", "double", "moved", "forged", "deep"]
        )
    )
    match kind:
        case "number":
            column = draw(st.sampled_from(NUMBERS))
            return WHERE.format(f"{column} = {column} + ?"), (draw(st.integers(-2, 50)), at)
        case "bytes":
            column = draw(st.sampled_from(BYTES))
            return WHERE.format(f"{column} = ?"), (draw(st.binary(max_size=40)), at)
        case "text":
            column = draw(st.sampled_from(TEXTS))
            return WHERE.format(f"{column} = {column} || ?"), (
                draw(st.text("a\0é}", max_size=2)),
                at,
            )
        case "type":
            column = draw(st.sampled_from(BYTES))
            return WHERE.format(f"{column} = CAST(? AS TEXT)"), ("no bytes", at)
        case "gone":
            return "DELETE FROM entries WHERE position = ?", (at,)
        case "swap":
            column = draw(st.sampled_from(("body", "envelope", "digest")))
            other = draw(st.integers(1, 40))
            took = f"coalesce((SELECT {column} FROM entries WHERE position = {other}), {column})"
            return WHERE.format(f"{column} = {took}"), (at,)
        case "double":
            columns = "stream, NULL, x'ef', entity, revision, operation || '2', digest, envelope"
            return (
                f"INSERT INTO entries SELECT 1000, {columns}, body FROM entries WHERE position = ?",
                (at,),
            )
        case "moved":
            return WHERE.format("position = ?"), (draw(st.sampled_from((0, -3, 900))), at)
        case "forged":
            return "forged", (
                draw(st.sampled_from(("entity", "tenant", "revision", "predecessor"))),
                at,
            )
        case _:
            return WHERE.format("envelope = ?"), ('{"x":' + "[" * 5000, at)


def spoil(place: Copy, change: tuple[str, tuple[Any, ...]]) -> None:
    sql, parameters = change
    if sql != "forged":
        raw(place.path, change)
        return
    # Sealed anew, digest and all, over another field.
    field, at = parameters
    with closing(sqlite3.connect(place.path)) as file:
        found = file.execute("SELECT envelope FROM entries WHERE position = ?", (at,)).fetchone()
    if found is None:
        return
    given = {"entity": '"case/9"', "tenant": '"other"', "revision": "77", "predecessor": "null"}
    head, name, rest = found[0].partition(f'"{field}":')
    end = rest.index("},") + 1 if rest.startswith("{") else rest.index(",")
    text = head + name + given[field] + rest[end:]
    digest = bytes.fromhex(digest_of(text.encode()))
    raw(place.path, (WHERE.format("envelope = ?, digest = ?"), (text, digest, at)))


@settings(
    max_examples=600 if LONG else 30,
    derandomize=not LONG,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(changes=st.lists(spoilt(), max_size=3), parallel=st.booleans())
def test_p10_a_scan_and_a_walk_of_a_spoilt_journal_find_the_same(
    written: Settings,
    tmp_path: Path,
    changes: list[tuple[str, tuple[Any, ...]]],
    parallel: bool,
) -> None:
    place = copied(written, tmp_path)
    for change in changes:
        try:
            spoil(place, change)
        except sqlite3.IntegrityError:
            continue  # the file itself does not take it
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(walking, "PARALLEL_FROM", 4 if parallel else 1 << 40)
        assert verify_journal(place, "main") == walked(place)


def forge(place: Copy, at: int, change: Callable[[dict[str, Any]], None]) -> None:
    """Seal an entry anew over other fields, with digest and columns that agree with them."""
    with closing(sqlite3.connect(place.path)) as file:
        text = file.execute("SELECT envelope FROM entries WHERE position = ?", (at,)).fetchone()[0]
    fields = json.loads(text)
    change(fields)
    text = json.dumps(fields, separators=(",", ":"), sort_keys=True)
    names = ("envelope", "digest", "revision", "history", "sequence", "operation", "entity")
    columns = ", ".join(f"{name} = ?" for name in names)
    values = (
        bytes.fromhex(digest_of(text.encode())),
        fields["revision"],
        bytes.fromhex(fields["history"]),
        *(fields[name] for name in ("sequence", "operation", "entity")),
    )
    raw(place.path, (WHERE.format(columns), (text, *values, at)))


def before(**changes: Any) -> Callable[[dict[str, Any]], None]:
    return lambda fields: (fields["predecessor"] or {}).update(changes)


def body(**changes: Any) -> Callable[[dict[str, Any]], None]:
    return lambda fields: fields["body"].update(changes)


FORGED: dict[str, Callable[[dict[str, Any]], None]] = {
    "size": body(size=7),
    "sha256": body(sha256="ab" * 32),
    "predecessor's digest": before(digest="ab" * 32),
    "predecessor's history": before(history="ab" * 16),
    "predecessor's revision": before(revision=70),
    "no predecessor": lambda fields: fields.update(predecessor=None),
    "revision": lambda fields: fields.update(revision=fields["revision"] + 10),
    "history": lambda fields: fields.update(history="ef" * 16),
    "tenant": lambda fields: fields.update(tenant="other"),
}
COLUMNS = {
    "history": "x'ef'",
    "revision": "revision + 10",
    "operation": "'other'",
    "sequence": "NULL",
    "entity": "'case/9'",
    "digest": "x'ef'",
    "body": "x''",
}


@pytest.mark.parametrize("parallel", [False, True])
@pytest.mark.parametrize("how", [*FORGED, *(f"column {name}" for name in COLUMNS)])
def test_p10_every_field_of_every_entry_is_held_against_what_it_has_to_be(
    written: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str, parallel: bool
) -> None:
    monkeypatch.setattr(walking, "PARALLEL_FROM", 4 if parallel else 1 << 40)
    for at in positions(written, "case/1"):
        place = copied(written, tmp_path)
        if how in FORGED:
            forge(place, at, FORGED[how])
        else:
            name = how.removeprefix("column ")
            raw(place.path, (WHERE.format(f"{name} = {COLUMNS[name]}"), (at,)))
        assert verify_journal(place, "main") == walked(place)


def positions(written: Settings, entity: str) -> list[int]:
    with closing(sqlite3.connect(written.journal_file)) as file:
        found = file.execute("SELECT position FROM entries WHERE entity = ?", (entity,))
        return [position for (position,) in found]


def test_p10_what_is_sound_is_scanned_alone(place: Copy, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = walked(place)
    assert expected.findings == []
    assert expected.entities == ENTITIES
    monkeypatch.setattr(walking, "_walk", _not_called)
    for parallel in (4, 1 << 40):
        monkeypatch.setattr(walking, "PARALLEL_FROM", parallel)
        assert verify_journal(place, "main") == expected


def _not_called(*_: object) -> Walked:
    raise AssertionError("nothing is to be walked")


def test_p10_a_journal_of_more_entities_than_a_scan_remembers_is_walked(
    place: Copy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scanning, "MAX_ENTITIES", ENTITIES - 1)
    assert verify_journal(place, "main") == walked(place)
    raw(place.path, f"UPDATE entries SET body = x'00' WHERE position = {size(place)}")
    assert [item.kind for item in verify_journal(place, "main").findings] == ["mismatch"]


@pytest.mark.parametrize("many", [0, 1])
def test_p10_more_doubts_than_a_scan_has_spared_are_walked_at_once(
    place: Copy, monkeypatch: pytest.MonkeyPatch, many: int
) -> None:
    monkeypatch.setattr(walking, "MAX_DOUBTED", many)
    raw(place.path, "UPDATE entries SET body = x'00' WHERE entity IN ('case/1', 'case/2')")
    found = verify_journal(place, "main")
    assert found == walked(place)
    assert {item.entity for item in found.findings} == {"case/1", "case/2"}


CROSSED = {
    "revision": "(entity, revision + 100 * (position = {}), history)",
    "entity": "(entity || iif(position = {}, 'x', ''), revision, history)",
    "history": "(entity, revision, iif(position = {}, x'ab', history))",
    "missing": "(entity, revision, history) WHERE position <> {}",
}


@pytest.mark.parametrize("parallel", [False, True])
@pytest.mark.parametrize("how", CROSSED)
def test_p10_an_index_that_does_not_repeat_its_rows_is_found(
    place: Copy, monkeypatch: pytest.MonkeyPatch, how: str, parallel: bool
) -> None:
    cross(place.path, CROSSED[how].format(size(place)))
    monkeypatch.setattr(walking, "PARALLEL_FROM", 4 if parallel else 1 << 40)
    found = verify_journal(place, "main").findings
    assert found
    assert {item.kind for item in found} <= {"mismatch", "gap"}


def cross(file: Path, columns: str) -> None:
    """Fill the index by entity with something else than its definition says."""
    with closing(sqlite3.connect(file, isolation_level=None)) as database:
        name = "entries_revision"
        (sql,) = database.execute(
            "SELECT sql FROM sqlite_master WHERE name = ?", (name,)
        ).fetchone()
        database.execute(f"DROP INDEX {name}")
        # An expression may not name the row's number, so it is told by what only this row has.
        (unique,) = database.execute(
            "SELECT operation FROM entries ORDER BY position DESC LIMIT 1"
        ).fetchone()
        told = columns.replace("position", "operation")
        number = columns[columns.index("position") :].split()[2].rstrip("),")
        told = told.replace(f" {number}", f" '{unique}'", 1)
        database.execute(f"CREATE UNIQUE INDEX {name} ON entries {told}")
        database.execute("PRAGMA writable_schema=ON")
        database.execute("UPDATE sqlite_master SET sql = ? WHERE name = ?", (sql, name))


@pytest.fixture
def one_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second process ends as one does that touches a page which the disk cannot read."""
    ours = os.getpid()
    real = scanning.scan

    def scan(*given: Any) -> Scanned:
        if os.getpid() != ours:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*given)

    monkeypatch.setattr(walking, "PARALLEL_FROM", 4)
    monkeypatch.setattr(walking, "scan", scan)


@pytest.mark.usefixtures("one_is_killed")
def test_p10_a_process_that_a_bad_page_kills_is_damage(place: Copy) -> None:
    with pytest.raises(Damaged, match="could not be read"):
        verify_journal(place, "main")


def test_p10_what_the_second_process_is_not_sure_of_is_walked(
    place: Copy, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = os.getpid()
    real = scanning.scan

    def scan(*given: Any) -> Scanned:
        if os.getpid() != ours:
            raise Unsure("a test")
        return real(*given)

    monkeypatch.setattr(walking, "PARALLEL_FROM", 4)
    monkeypatch.setattr(walking, "scan", scan)
    assert verify_journal(place, "main") == walked(place)
