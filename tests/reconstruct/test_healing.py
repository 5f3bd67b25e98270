"""R10: a journal that lost its tail, or is gone, is built anew from its store."""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from journal import Settings
from journal.control import Control, Role
from journal.detection import Verdict
from journal.errors import Recovering, Refused
from journal.log.sqlite import SqliteLog
from journal.sqlite import Database
from journal.status import status
from journal.stopping import stop_action
from journal.tokens import create_token, revoke_token
from journal.worker import drive
from reconstruct import recovery, verification
from reconstruct.fencing import alone
from reconstruct.healing import Healed, HealingSurvey, heal, survey_healing
from reconstruct.recovery import Applied
from tests.reconstruct.scenes import GAP, Killed, Scene, kill, query, raw
from tests.soak.ledger import Ledger
from tests.soak.processes import Site, site_at
from tests.support.releases import Yard, lane_settings
from tests.support.tenants import Tenant, make_settings, operation

ENTRIES = (
    "SELECT position, stream, sequence, hex(history), entity, revision, operation, hex(digest),"
    " CAST(envelope AS BLOB), body FROM entries ORDER BY position"
)


def entries(file: Path) -> list[tuple[Any, ...]]:
    return query(file, ENTRIES)


def settled(tenant: Tenant) -> None:
    """Both files closed, nothing in their logs."""
    if isinstance(tenant, Scene):
        tenant.settle()
    tenant.close()
    for file in (tenant.settings.store_file, tenant.settings.journal_file):
        assert not file.with_name(file.name + "-wal").exists()


def _discard(file: Path) -> None:
    for suffix in ("", "-wal", "-shm"):
        file.with_name(file.name + suffix).unlink(missing_ok=True)


def _forget_witness(tenant: Tenant) -> None:
    """No witness, as if there had never been one."""
    tenant.settings.witness_file.unlink()
    tenant.settings.beside("witnessed").unlink()


class Older:
    """A journal, or a store, as of an earlier moment."""

    def __init__(self, tenant: Tenant, *, store: bool = False) -> None:
        settled(tenant)
        settings = tenant.settings
        self._file = settings.store_file if store else settings.journal_file
        self.copy = self._file.with_name(f"older-{self._file.name}")
        shutil.copyfile(self._file, self.copy)
        tenant.open()

    def put_back(self) -> None:
        shutil.copyfile(self.copy, self._file)


@pytest.fixture
def short(scene: Scene) -> Scene:
    """A tenant whose journal lost its tail: six decisions are there, seven in the store alone."""
    scene.fill(6, entities=3)
    older = Older(scene)
    scene.fill(7, entities=4)
    settled(scene)
    scene.lost = entries(scene.settings.journal_file)  # type: ignore[attr-defined]
    scene.state = scene.digest()  # type: ignore[attr-defined]
    older.put_back()
    scene.open()
    return scene


def survey(tenant: Tenant) -> HealingSurvey:
    return tenant.do(survey_healing)


def healed(tenant: Tenant, accept_loss: str | None = None) -> Healed:
    with alone(tenant.settings):
        return tenant.do(heal, "a test", accept_loss=accept_loss)


def applied(tenant: Tenant, accept_loss: str | None = None) -> Applied:
    """Every step of a recovery of a journal, as the command line takes them."""
    recovery.stop(tenant.settings, "a test")
    with pytest.raises(Refused, match="stopped, not fenced: do not restore"):
        tenant.do(recovery.begin, "a test")
    done = tenant.do(recovery.apply, accept_loss=accept_loss)
    tenant.do(recovery.reopen, despite={"reconciled", "healed"})
    return done


def rebase_facts(tenant: Tenant) -> dict[str, Any]:
    rows = [row.entry() for row in drive(tenant.log.control())]
    last = next(entry for entry in reversed(rows) if entry.envelope.action == "rebase")
    facts: dict[str, Any] = msgspec.json.decode(last.body)
    return facts


# The journal alone was rolled back.


def test_r10_a_journal_that_lost_its_tail_is_closed_and_healed_from_the_store(short: Scene) -> None:
    kept = entries(short.settings.journal_file)
    assert short.detect() is Verdict.JOURNAL_REWOUND
    with pytest.raises(Recovering):
        short.turn(operation("case/0", "set", {"value": 1}))
    plan = short.plan()
    assert (plan.direction, plan.missing, plan.healing is not None) == ("journal", 7, True)

    done = applied(short)
    assert done.healed is not None
    assert (done.healed.decisions, done.healed.first, done.healed.last) == (7, 7, 13)
    assert (done.healed.others, done.healed.loss) == (0, None)
    now = entries(short.settings.journal_file)
    # What it held keeps its place and bytes; what came back has the bytes that it had.
    assert now[: len(kept)] == kept
    lost: list[tuple[Any, ...]] = short.lost  # type: ignore[attr-defined]
    assert now[: len(lost)] == lost
    # The old journal is kept as it was found.
    assert done.healed.replaced is not None
    assert entries(Path(done.healed.replaced) / "main.db") == kept
    short.repeats()
    assert short.digest() == short.state  # type: ignore[attr-defined]
    short.put("case/0", "after")
    short.whole()


def test_r10_a_journal_that_is_gone_is_healed_from_the_store_alone(scene: Scene) -> None:
    scene.fill(9, entities=3)
    settled(scene)
    lost = entries(scene.settings.journal_file)
    for suffix in ("", "-wal", "-shm"):
        file = scene.settings.journal_file
        file.with_name(file.name + suffix).unlink(missing_ok=True)
    scene.open()
    assert scene.detect() is Verdict.JOURNAL_REWOUND
    found = survey(scene)
    assert (found.journal, found.control, found.decisions) == (None, 1, 9)
    done = applied(scene)
    assert done.healed is not None
    assert done.healed.replaced is None
    assert entries(scene.settings.journal_file)[: len(lost)] == lost
    scene.repeats()
    scene.whole()


def test_r10_an_emptied_journal_file_counts_as_gone(scene: Scene) -> None:
    scene.fill(4)
    settled(scene)
    scene.settings.journal_file.write_bytes(b"")
    scene.open()
    assert scene.detect() is Verdict.JOURNAL_REWOUND
    assert applied(scene).healed is not None
    scene.repeats()
    scene.whole()


def test_r10_control_comes_back_first_a_revoked_token_stays_revoked(scene: Scene) -> None:
    scene.fill(2)
    secret = scene.do(create_token, Role.WRITER, "kept")
    identity = next(iter(scene.control().tokens))
    older = Older(scene)
    scene.do(revoke_token, identity)
    scene.do(create_token, Role.READER, "new")
    scene.fill(3)
    settled(scene)
    older.put_back()
    scene.open()
    assert not scene.control().tokens[identity].revoked
    assert survey(scene).control == 2
    applied(scene)
    assert scene.control().tokens[identity].revoked
    assert len(scene.control().tokens) == 2
    assert secret
    scene.repeats()
    scene.whole()


def test_r10_a_tail_with_a_recovery_in_it_comes_back_with_both_histories(
    scene: Scene, tmp_path: Path
) -> None:
    scene.fill(3)
    older = Older(scene)
    scene.fill(2)
    scene.keep(tmp_path / "snapshot")
    scene.fill(2)
    scene.restore(tmp_path / "snapshot")
    scene.recover()
    scene.fill(4)
    ended = [record.history for record in scene.control().histories]
    settled(scene)
    older.put_back()
    scene.open()
    found = survey(scene)
    assert (found.decisions, found.loss) == (8, None)
    done = applied(scene)
    control: Control = scene.control()
    assert [record.history for record in control.histories] == [*ended, done.history]
    assert done.generation == 3
    assert done.first_sequence > found.last + GAP - 1
    scene.repeats()
    scene.whole()


def test_r10_between_a_recovery_and_its_reopening_the_new_history_is_not_lost(
    scene: Scene, tmp_path: Path
) -> None:
    """The store keeps the entry that started the history before any decision of it."""
    scene.fill(3)
    scene.keep(tmp_path / "snapshot")
    older = Older(scene)
    scene.fill(2)
    scene.restore(tmp_path / "snapshot")
    recovery.stop(scene.settings, "a test")
    scene.do(recovery.begin, "a test")
    history = scene.do(recovery.apply).history
    scene.close()
    older.put_back()
    scene.open()
    done = applied(scene)
    assert done.parent == history
    scene.repeats()
    scene.whole()


def test_r10_without_a_witness_the_healed_journal_says_that_more_may_be_lost(short: Scene) -> None:
    short.settings.witness_file.unlink()
    found = survey(short)
    assert (found.witness, found.others) == (None, None)
    assert found.loss is not None
    assert found.exceptions == 2
    with pytest.raises(Refused, match="there is no witness: what callers sealed"):
        healed(short)
    done = applied(short, found.loss.name)
    assert done.healed is not None
    assert done.healed.others is None
    assert rebase_facts(short)["loss"]["others"] is None
    short.repeats()
    short.settle()  # from here on there is a witness again
    short.whole()


def test_r10_callers_entries_and_observations_are_lost_only_once_the_loss_is_named(
    scene: Scene,
) -> None:
    caller = scene.caller()
    scene.append(caller.seal("contract/1"))
    scene.fill(2)
    older = Older(scene)
    first = caller.heads["contract/1"]
    scene.append(caller.seal("contract/1"), caller.seal("contract/2"))
    scene.fill(3)
    settled(scene)
    older.put_back()
    scene.open()
    found = survey(scene)
    assert (found.decisions, found.others) == (3, 2)
    assert found.loss is not None
    assert (found.loss.decisions, found.loss.others) == ([], 2)
    assert scene.plan().exceptions
    with pytest.raises(Refused, match="lost: at least 2 entries that callers sealed"):
        healed(scene)
    done = applied(scene, found.loss.name)
    assert done.healed is not None
    assert done.healed.others == 2
    assert rebase_facts(scene)["others"] == 2
    # Their caller still has them: it seals them anew in the history in force.
    caller = scene.caller()
    caller.heads["contract/1"] = first
    again = [caller.seal("contract/1"), caller.seal("contract/2")]
    assert [answer.durable_through for answer in scene.append(*again)] == [2, 1]
    scene.repeats()
    scene.whole()


def test_r10_the_generation_exceeds_every_one_that_was_seen(short: Scene) -> None:
    """A recovery that had begun and is lost with the tail must not be repeated by number."""
    settings = short.settings
    saw = msgspec.json.decode(settings.witness_file.read_bytes())
    settings.witness_file.write_bytes(msgspec.json.encode({**saw, "generation": 7}))
    assert applied(short).generation == 8
    assert short.put("case/0", "after").generation == 8
    short.whole()


def test_r10_the_witness_has_a_new_beginning_and_the_old_journal_is_refused(short: Scene) -> None:
    older = short.settings.journal_file.read_bytes()
    applied(short)
    short.put("case/0", "after")
    short.close()
    saw = msgspec.json.decode(short.settings.witness_file.read_bytes())
    assert saw["epoch"] > 0
    short.settings.journal_file.write_bytes(older)
    short.open()
    assert short.detect() is Verdict.JOURNAL_REWOUND
    assert "new beginning" in short.do(status).detail


def test_r10_a_revocation_after_the_witness_looked_last_survives_in_the_store(
    tmp_path: Path,
) -> None:
    """Killed before the witness saw it: nothing but the store's copy remembers it."""
    yard = Yard(lane_settings(tmp_path))
    try:
        yard.do(create_token, Role.OPERATOR, "mallory")
        yard.release("payment/1")
        older = Older(yard)
        identity = next(iter(yard.control().tokens))
        drive(yard.record.remember())
        saw = yard.settings.witness_file.read_bytes()
        yard.do(revoke_token, identity)
        yard.do(stop_action, "payment", None, "fraud")
        kill(yard.records.pop())
        yard.settings.witness_file.write_bytes(saw)
        _discard(yard.settings.journal_file)
        older.put_back()
        yard.open()
        found = survey(yard)
        assert (found.control, found.others, found.loss) == (2, 0, None)
        assert found.exceptions == 1
        applied(yard)
        assert yard.control().tokens[identity].revoked
        assert "payment" in yard.control().holds
        assert yard.claim("bank").permits == []
        yard.finish()
    finally:
        yard.close()


def test_r10_after_a_healing_nothing_leaves_until_somebody_has_looked_at_control(
    short: Scene,
) -> None:
    """Nobody can prove that no revocation was in the tail: a person answers for it, once."""
    looked = msgspec.json.decode(short.settings.witness_file.read_bytes())["at"]
    recovery.stop(short.settings, "a test")
    short.do(recovery.apply)
    short.do(create_token, Role.OPERATOR, "bob")
    waived = {"reconciled"}
    done = short.do(recovery.reopen, despite=waived)
    assert done.stage == "internal"
    (missing,) = done.missing
    assert missing.startswith("healed: ")
    assert f"after {looked}" in missing
    assert "bob" in missing
    done = short.do(recovery.reopen, despite={*waived, "healed"}, reason="looked at")
    assert (done.stage, len(done.despite)) == ("open", 1)
    # A later recovery of the store asks nothing about it any more.
    short.detect()
    recovery.stop(short.settings, "another test")
    short.do(recovery.begin, "another test")
    short.do(recovery.apply)
    assert short.do(recovery.reopen, despite=waived).stage == "open"
    short.whole()


# Both were rolled back.


@pytest.fixture
def both(scene: Scene) -> Scene:
    """The witness saw thirteen decisions; the store holds nine, the journal six."""
    scene.fill(6)
    journal = Older(scene)
    scene.fill(3)
    store = Older(scene, store=True)
    scene.fill(4)
    settled(scene)
    journal.put_back()
    store.put_back()
    scene.open()
    return scene


def test_r10_with_both_rolled_back_it_is_refused_and_says_what_is_known_and_what_is_not(
    both: Scene,
) -> None:
    before = entries(both.settings.journal_file)
    held, kept = _ends(both)
    saw = msgspec.json.decode(both.settings.witness_file.read_bytes())
    recovery.stop(both.settings, "a test")
    with pytest.raises(Refused) as refused:
        both.do(recovery.apply)
    said = refused.value.detail
    assert f"the journal holds 7 entries, decisions through sequence 6 ({held})" in said
    assert f"the store holds decisions through sequence 9 ({kept})" in said
    assert f"the witness saw 14 entries at {saw['at']}: decisions through sequence 13" in said
    assert saw["head"] in said
    assert "lost: the decisions of sequence 10 to 13; their operation IDs" in said
    assert "are not known" in said
    assert f"--accept-loss {saw['digest']}" in said
    assert "\n" not in said
    # Another name accepts nothing.
    with pytest.raises(Refused, match="not named"):
        both.do(recovery.apply, accept_loss=saw["head"][:-1] + "x")
    assert entries(both.settings.journal_file) == before
    assert not list(both.settings.journal_file.parent.glob("replaced-*"))


def _ends(scene: Scene) -> tuple[str, str]:
    """The digests of the journal's and of the store's last decision."""
    last = query(
        scene.settings.journal_file,
        "SELECT lower(hex(digest)) FROM entries WHERE stream = 'decisions'"
        " ORDER BY sequence DESC LIMIT 1",
    )
    marker = query(scene.settings.store_file, "SELECT digest FROM unrewind_marker")
    return last[0][0], marker[0][0]


def test_r10_a_loss_that_is_accepted_by_name_is_journalled_and_never_numbered_again(
    both: Scene,
) -> None:
    found = survey(both)
    assert found.loss is not None
    assert (found.decisions, found.first, found.last) == (3, 7, 9)
    done = applied(both, found.loss.name)
    assert done.healed is not None
    assert done.healed.loss == found.loss
    facts = rebase_facts(both)
    assert facts["loss"]["decisions"] == [{"first": 10, "last": 13}]
    assert facts["loss"]["known"] is True
    assert facts["witness"]["sequence"] == 13
    # The sequences that were given out are not given out again.
    assert done.first_sequence == 13 + GAP
    kept = [name for name, (_, answer) in both.told.items() if (answer.sequence or 0) <= 9]
    lost = [name for name in both.told if name not in kept]
    assert (len(kept), len(lost)) == (9, 4)
    for name in lost:
        both.told.pop(name)
    both.repeats()
    both.put("case/0", "after")
    both.whole()


def test_r10_both_of_the_same_moment_lose_only_what_the_witness_alone_remembers(
    scene: Scene,
) -> None:
    scene.fill(4)
    journal, store = Older(scene), Older(scene, store=True)
    scene.fill(2)
    settled(scene)
    journal.put_back()
    store.put_back()
    scene.open()
    assert scene.detect() is Verdict.JOURNAL_REWOUND
    found = survey(scene)
    assert found.loss is not None
    assert (found.decisions, [str(span) for span in found.loss.decisions]) == (0, ["5 to 6"])
    applied(scene, found.loss.name)
    scene.put("case/0", "after")
    scene.whole()


def test_r10_with_no_store_left_the_journal_goes_on_alone_once_the_loss_is_named(
    scene: Scene,
) -> None:
    scene.fill(4)
    journal = Older(scene)
    scene.fill(2)
    settled(scene)
    journal.put_back()
    scene.settings.store_file.unlink()
    scene.open()
    found = survey(scene)
    assert found.store is None
    assert found.loss is not None
    done = applied(scene, found.loss.name)
    assert done.replayed == 4
    scene.whole()


def test_r10_lost_control_is_named(scene: Scene) -> None:
    scene.fill(2)
    journal, store = Older(scene), Older(scene, store=True)
    scene.do(create_token, Role.READER, "lost")
    settled(scene)
    journal.put_back()
    store.put_back()
    scene.open()
    with pytest.raises(Refused, match="lost: control entries 2; which tokens were revoked"):
        healed(scene)
    loss = survey(scene).loss
    assert loss is not None
    applied(scene, loss.name)
    assert scene.control().tokens == {}
    scene.whole()


def test_r10_a_journal_that_went_on_is_healed_only_once_the_loss_is_named(scene: Scene) -> None:
    """Nobody can count what is lost where the line that was lost has another one in its place."""
    scene.fill(2)
    journal, store = Older(scene), Older(scene, store=True)
    scene.fill(2)
    settled(scene)
    witness = scene.settings.witness_file
    saw = witness.read_bytes()
    journal.put_back()
    store.put_back()
    witness.unlink()
    scene.open()
    scene.fill(5)
    settled(scene)
    witness.write_bytes(saw)
    scene.open()
    with pytest.raises(Refused, match="went on after it was rolled back"):
        healed(scene)
    loss = survey(scene).loss
    assert loss is not None
    assert loss.parted
    applied(scene, loss.name)
    scene.whole()


# A store that cannot give everything back.


def test_r10_a_damaged_copy_is_a_named_loss_and_its_entity_has_a_gap(short: Scene) -> None:
    short.close()
    damaged = "UPDATE unrewind_decisions SET body = X'00' WHERE sequence = 9"
    raw(short.settings.store_file, damaged)
    short.open()
    found = survey(short)
    assert found.loss is not None
    assert [str(span) for span in found.loss.decisions] == ["9"]
    assert found.decisions == 6
    entity = query(
        short.settings.store_file,
        "SELECT json_extract(envelope, '$.entity') FROM unrewind_decisions WHERE sequence = 9",
    )[0][0]
    with pytest.raises(Refused, match="lost: the decisions of sequence 9;"):
        healed(short)
    healed(short, found.loss.name)
    recovery.stop(short.settings, "a test")
    done = short.do(recovery.apply)
    report = verification.verify(short.settings)
    assert entity in {finding.entity for finding in report.findings}
    assert done.incomplete == [entity]
    assert any(finding.sequence == 9 for finding in report.findings)


def test_r10_a_store_of_another_line_heals_nothing(scene: Scene) -> None:
    """The store's decision at the journal's tip is another one: neither is changed."""
    scene.fill(3)
    older = Older(scene)
    base = Older(scene, store=True)
    scene.fill(1)
    settled(scene)
    theirs = entries(scene.settings.journal_file)
    older.put_back()
    base.put_back()
    scene.settings.witness_file.unlink()
    scene.open()
    scene.fill(2)
    settled(scene)
    # The first line's journal, cut back to its tip, beside the second line's longer store.
    shutil.copyfile(older.copy, scene.settings.journal_file)
    raw(scene.settings.journal_file, (_INSERT, _blobs(theirs[-1])))
    scene.open()
    assert scene.detect() in {Verdict.FORKED, Verdict.JOURNAL_REWOUND}
    with pytest.raises(Refused):
        healed(scene)


_INSERT = "INSERT INTO entries VALUES (?, ?, ?, ?, ?, ?, ?, ?, CAST(? AS TEXT), ?)"


def _blobs(row: tuple[Any, ...]) -> tuple[Any, ...]:
    found = [*row]
    found[3], found[7] = bytes.fromhex(found[3]), bytes.fromhex(found[7])
    return tuple(found)


def test_r10_a_sound_journal_is_not_healed(scene: Scene) -> None:
    scene.fill(2)
    with pytest.raises(Refused, match="needs no healing"):
        healed(scene)
    with pytest.raises(Refused, match="needs no healing"):
        survey(scene)
    scene.whole()


@pytest.mark.parametrize("case", ["removed", "kept", "sealed"])
def test_r10_a_journal_that_was_healed_and_never_put_in_place_is_none_later(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    """The real journal came back instead and went on: what was healed would take that back.

    `kept`: it was not even removed. `sealed`: nor does the store know that the journal went on.
    """
    file = scene.settings.journal_file
    built = file.with_name("main.db.healed")
    scene.fill(3)
    older = Older(scene)
    scene.fill(2)
    settled(scene)
    real = file.read_bytes()
    older.put_back()
    scene.open()

    async def killed(*_: Any) -> bool:
        raise Killed

    _forget_witness(scene)
    loss = survey(scene).loss
    assert loss is not None
    monkeypatch.setattr("reconstruct.healing._put_in_place", killed)
    with pytest.raises(Killed):
        healed(scene, loss.name)
    monkeypatch.undo()
    scene.close()
    stale = built.read_bytes()
    file.write_bytes(real)
    scene.open()
    assert scene.detect() is Verdict.CLEAN
    assert not built.exists()
    if case == "sealed":
        scene.append(scene.caller().seal("contract/1"))
    else:
        scene.do(stop_action, "document", None, "fraud")
        scene.fill(3)
    settled(scene)
    _discard(file)
    _forget_witness(scene)
    if case != "removed":
        built.write_bytes(stale)
    scene.open()
    found = survey(scene)
    assert (found.decisions, found.control) == ((5, 1) if case == "sealed" else (8, 2))
    assert found.loss is not None
    applied(scene, found.loss.name)
    assert bool(scene.control().holds) is (case != "sealed")
    assert not built.exists()
    scene.repeats()
    scene.whole()


@pytest.mark.parametrize("why", ["busy", "no file"])
def test_r10_a_journal_that_cannot_be_reached_is_not_taken_for_a_damaged_one(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    """It may be whole: a new one in its place would split what both hold."""
    monkeypatch.setattr("journal.sqlite.BUSY_MS", 10)
    scene.fill(3)
    settled(scene)
    file = scene.settings.journal_file
    away = file.with_name("away.db")
    with ExitStack() as held:
        if why == "busy":
            other = held.enter_context(closing(sqlite3.connect(file, isolation_level=None)))
            other.execute("PRAGMA locking_mode=EXCLUSIVE")
            other.execute("BEGIN EXCLUSIVE")
        else:
            file.rename(away)
            file.mkdir()
        scene.open()
        assert scene.detect() is Verdict.JOURNAL_REWOUND
        for call in (survey, healed):
            with pytest.raises(Refused, match="cannot be reached"):
                call(scene)
        scene.close()
    if why != "busy":
        file.rmdir()
        away.rename(file)
    scene.settings.beside("stop").unlink()
    scene.open()
    assert scene.detect() is Verdict.CLEAN
    scene.repeats()
    scene.whole()


def test_r10_control_that_went_another_way_is_refused(scene: Scene) -> None:
    """The journal went on in control after it was rolled back: neither line is thrown away."""
    scene.fill(2)
    journal, store = Older(scene), Older(scene, store=True)
    scene.do(create_token, Role.READER, "one")
    scene.fill(1)
    settled(scene)
    longer = scene.settings.store_file.read_bytes()
    journal.put_back()
    store.put_back()
    scene.settings.witness_file.unlink()
    scene.open()
    scene.do(create_token, Role.READER, "another")
    settled(scene)
    scene.settings.store_file.write_bytes(longer)
    scene.open()
    assert scene.detect() is Verdict.JOURNAL_REWOUND
    before = entries(scene.settings.journal_file)
    with pytest.raises(Refused, match="control entry 2 of the store is not the journal's"):
        healed(scene)
    assert entries(scene.settings.journal_file) == before


# Releases.


def test_r10_releases_come_back_as_they_were_and_a_named_loss_is_there_for_reconciling(
    tmp_path: Path,
) -> None:
    yard = Yard(lane_settings(tmp_path))
    try:
        release = yard.release("payment/1")
        older = Older(yard)
        permit = yard.permit("pay")
        assert permit.id == release
        yard.report(permit, "confirmed", receipt="r-1")
        other = yard.release("payment/2")
        yard.close()
        older.put_back()
        yard.open()
        done = applied(yard)
        assert done.healed is not None
        assert done.healed.loss is None
        assert yard.row(release).status == "done"
        assert yard.row(other).status == "ready"
        assert rebase_facts(yard)["loss"]["known"] is False
        yard.finish()
    finally:
        yard.close()


# Killed.


_EXIT = 77


@contextmanager
def _dying(at: int) -> Iterator[None]:
    """End the process before the n-th step that leaves a trace on disk, or after it (odd ones)."""
    count = 0
    places: list[tuple[Any, str]] = [
        (SqliteLog, "append"),
        (Database, "copy_to"),
        (Database, "close"),
        (Path, "rename"),
        (Path, "replace"),
        (Path, "mkdir"),
        (Path, "unlink"),
        (os, "fsync"),
    ]

    def around(real: Callable[..., Any]) -> Callable[..., Any]:
        def step(*args: Any, **named: Any) -> Any:
            nonlocal count
            count += 1
            if count == at:
                os._exit(_EXIT)
            return real(*args, **named)

        return step

    saved = [(owner, name, getattr(owner, name)) for owner, name in places]
    for owner, name, real in saved:
        setattr(owner, name, around(real))
    try:
        yield
    finally:
        for owner, name, real in saved:
            setattr(owner, name, real)


def _in_child(settings: Settings, at: int, accept_loss: str | None) -> bool:
    """Heal in a child that ends itself at a step; whether it came to its end."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            tenant = Tenant(settings)
            with _dying(at):
                healed(tenant, accept_loss)
            code = 0
        finally:
            os._exit(code)
    _, status_of_child = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status_of_child)
    assert code in {0, _EXIT}, f"step {at}: the child ended with {code}"
    return code == 0


@pytest.mark.parametrize("kept", ["tail", "nothing", "both"])
def test_p11_a_healing_killed_at_any_step_and_run_again_ends_the_same(
    tmp_path: Path, kept: str
) -> None:
    """`tail`: the journal lost it. `nothing`: it is gone. `both`: the store lost some as well."""
    scene = Scene(make_settings(tmp_path / "template"))
    scene.fill(5)
    journal = Older(scene)
    scene.fill(2)
    store = Older(scene, store=True)
    scene.fill(2)
    settled(scene)
    journal.put_back()
    if kept == "both":
        store.put_back()
    if kept == "nothing":
        scene.settings.journal_file.unlink()
    scene.open()
    loss = survey(scene).loss
    name = None if loss is None else loss.name
    scene.close()
    template = scene.settings.home
    ended: list[Any] | None = None
    at = finishing = 0
    finished = False
    while not finished:
        at += 1
        settings = make_settings(tmp_path / f"killed-{at}")
        shutil.copytree(template, settings.home)
        finished = _in_child(settings, at, name)
        again = Tenant(settings)
        again.record.stop.put_up("a test", again.record.clock.now())
        finding, _ = drive(again.record.examine(witness=True))
        if finding.verdict is Verdict.JOURNAL_REWOUND:
            found_again = survey(again)
            finishing += found_again.generation == 2 and found_again.decisions == 0
            healed(again, name)
        assert drive(again.record.examine(witness=True))[0].verdict is Verdict.REWOUND
        control = again.control()
        assert (control.last, control.begun, control.authority.stage) == ("rebase", 2, "closed")
        again.close()
        found = [row for row in entries(settings.journal_file) if row[1] == "decisions"]
        ended = ended or found
        assert found == ended
        actions = query(
            settings.journal_file,
            "SELECT count(*) FROM entries WHERE stream = 'control'"
            " AND json_extract(envelope, '$.action') = 'rebase'",
        )
        assert actions == [(1,)], f"step {at}"
        shutil.rmtree(settings.home.parent)
    assert at > 10
    # It was killed between moving the old journal and the new one; one that was gone is built anew.
    assert bool(finishing) is (kept != "nothing")


# As processes.


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with site_at(tmp_path / "site", UNREWIND_WITNESS_EVERY="0.05") as made:
        yield made


def _decide(site: Site, ledger: Ledger, *names: str) -> None:
    from tests.hung.scene import decide_some

    server = site.start()
    for name in names:
        decide_some(server, ledger, name, 3)
    assert server.stop() == 0


def _looked_at(site: Site) -> None:
    """Reopened, once somebody says that control was looked at."""
    short = site.run("recover", "reopen")
    assert short.code == 1
    assert "--despite healed" in short.out
    reason = ("--reason", "the tokens were looked at")
    assert site.do("recover", "reopen", "--despite", "healed", *reason)["stage"] == "open"


def test_r10_a_served_journal_that_lost_its_tail_is_healed_beside_the_live_server(
    site: Site, tmp_path: Path
) -> None:
    ledger = Ledger()
    _decide(site, ledger, "kept")
    copy = tmp_path / "older.db"
    shutil.copyfile(site.journal, copy)
    _decide(site, ledger, "lost")
    full = entries(site.journal)
    shutil.copyfile(copy, site.journal)
    server = site.start()
    code, problem = server.decide("next", "case/1")
    assert (code, problem["type"]) == (503, "/problems/recovering"), problem
    assert site.status()["verdict"] == "journal-rewound"
    begun = site.run("recover", "begin", "--reason", "a test")
    assert begun.code == 3
    assert "stopped, not fenced: do not restore" in begun.err
    assert "recover plan" in begun.err
    plan = site.run("recover", "plan", "--json")
    assert plan.code == 1
    assert (plan.json["direction"], plan.json["missing"]) == ("journal", 3)
    done = site.do("recover", "apply", "--plan", plan.json["plan"])
    assert done["healed"]["decisions"] == 3
    _looked_at(site)

    healed_rows = [row[1:] for row in entries(site.journal)]
    assert [row for row in healed_rows if row[0] == "decisions"] == [
        row[1:] for row in full if row[1] == "decisions"
    ]
    assert {row[1:] for row in full} <= set(healed_rows)
    ledger.repeat(server, ledger.told)
    assert server.decide("next", "case/1")[0] == 201
    assert server.stop() == 0
    assert "Traceback" not in server.errors
    report = site.do("verify")
    assert (report["verdict"], report["findings"]) == ("clean", [])


def test_r10_both_rolled_back_is_refused_on_the_command_line_until_the_loss_is_named(
    site: Site, tmp_path: Path
) -> None:
    ledger = Ledger()
    _decide(site, ledger, "kept")
    files = [site.journal, site.store]
    for number, file in enumerate(files):
        shutil.copyfile(file, tmp_path / str(number))
    _decide(site, ledger, "lost")
    for number, file in enumerate(files):
        shutil.copyfile(tmp_path / str(number), file)
    saw = msgspec.json.decode(site.settings.witness_file.read_bytes())
    assert site.run("recover", "begin", "--reason", "a test").code == 3
    plan = site.run("recover", "plan")
    assert plan.code == 1
    assert saw["digest"] in plan.out
    refused = site.run("recover", "apply")
    assert refused.code == 3, refused
    assert len(refused.err.strip().splitlines()) == 1
    for words in ("the journal holds", "the store holds", "the witness saw", "are not known"):
        assert words in refused.err, refused
    done = site.do("recover", "apply", "--accept-loss", saw["digest"])
    assert done["healed"]["loss"]["decisions"] == [
        {"first": done["healed"]["loss"]["decisions"][0]["first"], "last": saw["sequence"]}
    ]
    _looked_at(site)
    server = site.start()
    assert server.decide("next", "case/1")[0] == 201
