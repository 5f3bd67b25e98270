"""Other ways to a connection, other roles, other journals."""

from __future__ import annotations

from pathlib import Path

import msgspec
import psycopg
import pytest
import sqlalchemy

from journal.acceptance import Operation
from journal.entry import JSON_TYPE
from journal.errors import JournalUnavailable, SettingsInvalid, TransitionRefused
from journal.inside import Inside
from journal.lifecycle import Action, Lifecycle, check_lifecycle
from journal.settings import Settings
from tests.inside.apps import Plain, operation, put, rows_of
from tests.inside.conftest import finish, found, settings_of
from tests.support.commanding import unrewind


def test_sqlalchemy_as_it_comes_and_its_connection(inside: Inside, settings: Settings) -> None:
    url = (settings.store or f"sqlite:///{settings.store_file}").replace(
        "postgresql://", "postgresql+psycopg://"
    )
    engine = sqlalchemy.create_engine(url)
    with engine.begin() as connection:
        decision = inside.decide_in(connection, operation("request"))
        connection.execute(sqlalchemy.text("INSERT INTO payouts VALUES ('7', 'requested', 1)"))
    assert inside.confirmed(decision).revision == 1
    with engine.connect() as connection:
        inside.decide_in(connection, operation("approve"))
        connection.rollback()
    engine.dispose()
    assert rows_of(settings) == [("7", "requested", 1)]


def test_no_operations_are_no_decisions(plain: Plain, inside: Inside) -> None:
    with plain.transaction():
        assert inside.decide_in(plain.connection, []) == []
    assert inside.confirmed_all([]) == []


@pytest.mark.engines
@pytest.mark.parametrize("engine", ["postgres"])
def test_a_role_with_the_rights_that_are_documented_decides(
    settings: Settings, inside: Inside
) -> None:
    inside.open()
    url = settings.store or ""
    with psycopg.connect(url, autocommit=True) as owner:
        owner.execute("DROP ROLE IF EXISTS shop")
        owner.execute("CREATE ROLE shop LOGIN")
        owner.execute("GRANT USAGE ON SCHEMA public TO shop")
        owner.execute("GRANT SELECT, INSERT, DELETE ON payouts TO shop")
    as_shop = Plain(msgspec.structs.replace(settings, store=url.replace("postgres@", "shop@")))
    with pytest.raises(JournalUnavailable, match="unrewind engine ddl"), as_shop.transaction():
        inside.decide_in(as_shop.connection, operation("request"))
    with psycopg.connect(url, autocommit=True) as owner:
        owner.execute("GRANT USAGE ON SCHEMA unrewind_main TO shop")
        owner.execute(
            "GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA unrewind_main TO shop"
        )
    with as_shop.transaction():
        decision = inside.decide_in(as_shop.connection, operation("request"))
        put(as_shop, "7", decision.state, decision.revision)
    assert inside.confirmed(decision).revision == 1
    as_shop.close()
    with psycopg.connect(url, autocommit=True) as owner:
        owner.execute("DROP OWNED BY shop")
        owner.execute("DROP ROLE shop")


@pytest.mark.engines
def test_p1_store_and_journal_on_two_servers(
    store_url: str, journal_url: str, tmp_path: Path
) -> None:
    settings = settings_of(tmp_path, store_url, journal=journal_url)
    found(settings)
    inside, app = Inside(settings), Plain(settings)
    with app.transaction():
        first = inside.decide_in(app.connection, operation("request"))
        second = inside.decide_in(app.connection, operation("approve"))
    assert [one.revision for one in inside.confirmed_all([first, second])] == [1, 2]
    app.close()
    inside.close()
    finish(settings)


def test_a_baseline_cannot_be_declared_or_imported(tmp_path: Path) -> None:
    rules = Lifecycle(actions={"baseline.draft": Action(("draft",), "draft")})
    with pytest.raises(SettingsInvalid, match="a baseline is unrewind's own action"):
        check_lifecycle("thing", rules)
    (tmp_path / "rows.csv").write_text("id,what\n1,baseline.approved\n1,release.confirmed\n")
    named = ["--entity-type", "document", "--entity", "id", "--action", "what"]
    words = ["import", "rows.csv", *named, "--json"]
    done = unrewind(words, tmp_path, {})
    assert (done.code, done.json["accepted"], done.json["refused"]) == (1, 0, 2)


LEDGER = "SELECT entity, state, revision, balance FROM ledger"


def account(action: str, balance: int, name: str = "account/1") -> Operation:
    body = msgspec.json.encode({"balance": balance})
    return Operation(f"{name}-{action}", name, action, body=body, body_type=JSON_TYPE)


def test_a_projection_writes_its_rows_in_the_transaction(
    plain: Plain, inside: Inside, settings: Settings
) -> None:
    inside.open()
    with plain.transaction():
        first = inside.decide_in(plain.connection, account("open", 10))
        with pytest.raises(TransitionRefused, match="own constraint refused it"):
            inside.decide_in(plain.connection, account("overdraw", -1))
        second = inside.decide_in(plain.connection, account("earn", 30))
    assert [one.revision for one in inside.confirmed_all([first, second])] == [1, 2]
    assert rows_of(settings, LEDGER) == [("account/1", "earn", 2, 30)]
    with plain.transaction():
        several = [account("open", 5, "account/2"), account("overdraw", -1)]
        with pytest.raises(TransitionRefused):
            inside.decide_in(plain.connection, several)
        third = inside.decide_in(plain.connection, account("spend", 20), projected=False)
        plain.run("UPDATE ledger SET state = 'spend', revision = 3, balance = 20")
    assert inside.confirmed(third).revision == 3
    assert rows_of(settings, LEDGER) == [("account/1", "spend", 3, 20)]
