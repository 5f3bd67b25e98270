"""Embedded types: the application's rows are rewound, undone and rebuilt with the decisions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from journal import Decided, Statement, reading
from journal.errors import HistoryIncomplete
from journal.lifecycle import Kind, Lifecycle, Owner
from journal.record import Record
from journal.settings import Settings
from journal.worker import drive
from reconstruct import recovery
from tests.reconstruct.scenes import Scene, query
from tests.support.ledger import Ledger
from tests.support.tenants import make_settings, operation

LEDGER = "SELECT * FROM ledger ORDER BY entity"


POSTINGS = """CREATE TABLE IF NOT EXISTS postings (
  owner TEXT NOT NULL REFERENCES owners (id), revision INTEGER NOT NULL, amount INTEGER NOT NULL,
  PRIMARY KEY (owner, revision))"""


class Postings:
    """Several tables and rows for an entity; inserts that would fail if they were done twice."""

    tables: Sequence[str] = (
        "CREATE TABLE IF NOT EXISTS owners (id TEXT PRIMARY KEY, name TEXT UNIQUE)",
        POSTINGS,
    )

    def apply(self, decision: Decided) -> Sequence[Statement]:
        post = Statement(
            "INSERT INTO postings (owner, revision, amount) VALUES (?,?,?)",
            (decision.entity, decision.revision, decision.data.get("amount", 0)),
        )
        name = decision.data.get("name", decision.entity)
        if decision.revision == 1:
            return [Statement("INSERT INTO owners VALUES (?,?)", (decision.entity, name)), post]
        return [
            Statement("UPDATE owners SET name = ? WHERE id = ?", (name, decision.entity)),
            post,
        ]

    def clear(self, entity: str) -> Sequence[Statement]:
        return [
            Statement("DELETE FROM postings WHERE owner = ?", (entity,)),
            Statement("DELETE FROM owners WHERE id = ?", (entity,)),
        ]


WALLET = Lifecycle(
    kind=Kind.FREE, owner=Owner.EMBEDDED, projection="tests.reconstruct.test_projections:Postings"
)


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    base = make_settings(tmp_path)
    return make_settings(tmp_path, lifecycle={**base.lifecycle, "wallet": WALLET})


def rows(scene: Scene) -> list:
    file = scene.settings.store_file
    return [
        query(file, "SELECT * FROM owners ORDER BY id"),
        query(file, "SELECT * FROM postings ORDER BY owner, revision"),
        query(file, LEDGER),
    ]


def post(scene: Scene, wallet: int, amount: int, name: str | None = None) -> None:
    body = {"amount": amount} | ({"name": name} if name else {})
    scene.submit(operation(f"wallet/{wallet}", "post", body))


def test_the_applications_rows_come_back_row_for_row(scene: Scene, tmp_path: Path) -> None:
    for number in range(12):
        post(scene, number % 3, number)
    scene.keep(tmp_path / "old")
    for number in range(12):
        post(scene, number % 4, -number, f"name {number}")
    scene.fill(5, kind="account")
    scene.settle()
    before, expected = scene.digest(), rows(scene)
    scene.restore(tmp_path / "old")
    assert rows(scene) != expected
    scene.recover()
    assert (scene.digest(), rows(scene)) == (before, expected)
    scene.repeats()
    scene.whole()


def test_a_projection_is_built_anew_with_the_store(scene: Scene) -> None:
    for number in range(9):
        post(scene, number % 3, number)
    before, expected = scene.digest(), rows(scene)
    scene.close()
    scene.settings.store_file.write_bytes(b"nothing of use")
    scene.open()
    scene.recover()
    assert (scene.digest(), rows(scene)) == (before, expected)
    scene.whole()


def broken(kind: str) -> Callable[[Ledger, Decided], Sequence[Statement]]:
    """A ledger that fails for account/1 from revision 3 on, in one of the ways that code fails."""
    real = Ledger.apply

    def apply(self: Ledger, decision: Decided) -> Sequence[Statement]:
        if decision.entity != "account/1" or decision.revision < 3:
            return real(self, decision)
        if kind == "raises":
            raise KeyError("balance")
        if kind == "constraint":
            values = (decision.entity, "x", decision.revision, -1)
            return [Statement("INSERT OR REPLACE INTO ledger VALUES (?,?,?,?)", values)]
        return [Statement("INSERT INTO ledger (no_such_column) VALUES (1)")]

    return apply


@pytest.mark.parametrize("kind", ["raises", "constraint", "sql"])
@pytest.mark.parametrize("anew", [False, True])
def test_p5_a_failing_projection_stops_its_entity_alone_and_is_mended(
    scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, *, anew: bool
) -> None:
    scene.fill(2, kind="account", entities=2)
    scene.keep(tmp_path / "old")
    scene.fill(12, kind="account", entities=3)
    scene.fill(6)
    scene.settle()
    before, expected = scene.digest(), rows(scene)
    scene.restore(tmp_path / "old")
    if anew:
        scene.close()
        scene.settings.store_file.unlink()
        scene.open()
    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "apply", broken(kind))
        applied = scene.recover()
        assert applied.incomplete == ["account/1"]
        flaws = scene.do(reading.read_gaps, None, None).items
        assert [(flaw.entity, flaw.flaw, flaw.first, flaw.durable_through) for flaw in flaws] == [
            ("account/1", "projection", 3, 2)
        ]
        assert flaws[0].holds == 3
        states = {row[0]: row[2] for row in query(scene.settings.store_file, LEDGER)}
        assert states == {"account/0": 5, "account/1": 2, "account/2": 4}
        partial = scene.digest()
        with pytest.raises(HistoryIncomplete):
            scene.put("account/1", "no")
        told = dict(scene.told)
        # Run again while it still fails: the same state, and the flaw stands since the same moment.
        again = scene.recover()
        assert again.incomplete == ["account/1"]
        assert scene.digest() == partial
        assert scene.do(reading.read_gaps, None, None).items == flaws
        scene.told = told
        assert scene.digest() == partial
    # One that failed is tried again together with its type: constraints reach across entities.
    assert scene.plan().rebuild == ["account/0", "account/1", "account/2"]
    mended = scene.recover()
    assert (mended.incomplete, mended.rebuilt) == ([], 3)
    assert scene.do(reading.read_gaps, None, None).items == []
    assert (scene.digest(), rows(scene)) == (before, expected)
    scene.repeats()
    scene.put("account/1", "goes on")
    scene.whole()


def test_a_failing_page_leaves_the_sound_part_of_other_incomplete_entities(
    scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A flaw and a failing projection in one page: each stops its own entity where it must."""
    from tests.reconstruct.scenes import raw

    scene.fill(2, kind="account", entities=2)
    scene.keep(tmp_path / "old")
    for number in range(5):
        scene.put("case/flawed", number)
    scene.fill(8, kind="account", entities=2)
    scene.settle()
    scene.restore(tmp_path / "old")
    scene.close()
    raw(
        scene.settings.journal_file,
        "UPDATE entries SET body = CAST('{\"value\":9}' AS BLOB)"
        " WHERE entity = 'case/flawed' AND revision = 4",
    )
    scene.open()
    monkeypatch.setattr(Ledger, "apply", broken("constraint"))
    applied = scene.recover()
    assert applied.incomplete == ["account/1", "case/flawed"]
    revisions = dict(
        query(scene.settings.store_file, "SELECT entity, revision FROM unrewind_entities")
    )
    assert revisions == {"account/0": 5, "account/1": 2, "case/flawed": 3}
    digest = scene.digest()
    scene.recover()
    assert scene.digest() == digest


def test_a_local_only_row_gives_its_unique_name_back(scene: Scene, tmp_path: Path) -> None:
    post(scene, 1, 5, "ada")
    scene.settle()
    scene.keep(tmp_path / "common")
    scene.local_only(operation("wallet/9", "post", {"amount": 1, "name": "grace"}))
    scene.keep(tmp_path / "local")
    scene.restore(tmp_path / "common")
    post(scene, 2, 7, "grace")
    scene.settle()
    before, expected = scene.digest(), rows(scene)
    scene.restore(tmp_path / "local")
    applied = scene.recover()
    assert (applied.undone, applied.incomplete) == (1, [])
    assert (scene.digest(), rows(scene)) == (before, expected)
    scene.whole()


def test_tables_of_a_projection_are_there_before_anything_is_replayed(
    scene: Scene, tmp_path: Path
) -> None:
    post(scene, 1, 5)
    scene.settle()
    before, expected = scene.digest(), rows(scene)
    scene.close()
    scene.settings.store_file.unlink()
    record = Record(scene.settings)
    drive(record.open())
    drive(recovery.begin(record, "a test"))
    drive(recovery.apply(record))
    drive(recovery.reopen(record))
    drive(record.close())
    scene.open()
    assert (scene.digest(), rows(scene)) == (before, expected)
    scene.whole()
