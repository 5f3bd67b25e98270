"""Creating, listing and closing tenants: whole or not at all, and nothing is ever removed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from api import registering
from api.glancing import glance
from api.opening import deciding, writing
from api.registering import create, names_of, settings_of, view
from journal import Settings, load_settings
from journal.control import Role
from journal.errors import NotFound, Recovering, Refused, SettingsInvalid
from journal.record import Record
from journal.registry import Registered, Registry
from journal.tokens import authenticate
from journal.worker import drive
from journal.writepath import turn
from reconstruct.reopening import reopen
from tests.support.tenants import accepted, operation
from tests.support.whole import verify_files
from tests.tenants.many import Service, moved, place


@pytest.fixture
def base(tmp_path: Path) -> Settings:
    return Settings(data=str(tmp_path / "data"), lock_timeout=2.0)


def decide(settings: Settings, **fields: str) -> None:
    with deciding(settings, create=False) as record:
        accepted(drive(turn(record, [operation(**fields)]))[0])


def test_a_tenant_that_is_created_has_its_own_store_journal_and_tokens(base: Settings) -> None:
    one, two = create(base, "one"), create(base, "two")
    assert one.store != two.store
    assert names_of(base) == ["main", "one", "two"]
    for made, other in ((one, two), (two, one)):
        with writing(settings_of(base, made.tenant)) as record:
            control = drive(record.read_control())
        found = authenticate(control, made.token)
        assert found is not None
        assert found.role is Role.OPERATOR
        assert authenticate(control, other.token) is None
    decide(settings_of(base, "one"))
    for name in ("one", "two"):
        assert view(base, name).verdict == "clean"
        assert verify_files(settings_of(base, name)) == []


def test_one_that_is_created_need_not_be_opened_to_know_that_it_is_sound(base: Settings) -> None:
    create(base, "one")
    seen = glance(settings_of(base, "one"))
    assert (seen.stage, seen.known, seen.due, seen.needs_opening) == ("open", True, False, False)


@pytest.mark.parametrize("step", ["open", "create_token", "write"])
def test_p11_a_creation_that_is_killed_is_finished_by_the_same_call(
    base: Settings, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        pass

    def killed(*_: object, **__: object) -> None:
        raise Killed

    owner = {"open": Record, "create_token": registering, "write": Registry}[step]
    with monkeypatch.context() as patch:
        patch.setattr(owner, step, killed)
        with pytest.raises(Killed):
            create(base, "one")
    assert names_of(base) == ["main"]
    assert create(base, "one").tenant == "one"
    assert names_of(base) == ["main", "one"]
    assert verify_files(settings_of(base, "one")) == []


def test_a_name_is_given_once(base: Settings) -> None:
    create(base, "one")
    for name in ("one", "main"):
        with pytest.raises(Refused, match="already"):
            create(base, name)
    with pytest.raises(NotFound, match="no tenant two"):
        settings_of(base, "two")


def test_closing_is_a_control_entry_and_what_was_closed_can_be_reopened(base: Settings) -> None:
    create(base, "one")
    settings = settings_of(base, "one")
    decide(settings, id="op-a")
    assert registering.close(settings, "the contract ended", "somebody")
    assert not registering.close(settings, "again")
    shown = view(base, "one")
    assert (shown.stage, shown.verdict, shown.detail) == ("closed", "clean", "the contract ended")
    with pytest.raises(Recovering):
        decide(settings, id="op-b")
    with writing(settings) as record:
        reopened = drive(reopen(record, "somebody"))
    assert reopened.stage == "open"
    decide(settings, id="op-b")
    assert verify_files(settings) == []


@pytest.mark.parametrize("reason", ["", "  ", "x" * 1001])
def test_a_tenant_is_not_closed_without_a_reason(base: Settings, reason: str) -> None:
    create(base, "one")
    with pytest.raises(Refused, match="say why"):
        registering.close(settings_of(base, "one"), reason)
    assert view(base, "one").stage == "open"


def test_every_way_of_loading_settings_finds_a_tenant_where_it_is(
    base: Settings, tmp_path: Path
) -> None:
    create(base, "one", place(tmp_path / "elsewhere"))
    found = load_settings(None, {"data": base.data, "tenant": "one"}, {})
    assert found.store_file == tmp_path / "elsewhere/store/one.db"
    assert found.journal_file == tmp_path / "elsewhere/journal/one.db"
    # The configuration names the service's own place; the registry knows better.
    named = load_settings(
        None, {"data": base.data, "tenant": "one"}, {"UNREWIND_STORE": str(tmp_path / "x")}
    )
    assert named.store_file == found.store_file
    given = load_settings(None, {"data": base.data, "tenant": "one", "store": "mine"}, {})
    assert given.store_file == Path("mine/one.db")
    assert load_settings(None, {"data": base.data}, {}).store_file == base.store_file


def test_a_relative_place_means_the_same_in_another_directory(
    base: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "there").mkdir()
    monkeypatch.chdir(tmp_path / "there")
    create(base, "one", registering.Place("s", "j"))
    monkeypatch.chdir(tmp_path)
    assert view(base, "one").store == str(tmp_path / "there/s/one.db")
    assert view(base, "one").verdict == "clean"


@pytest.mark.parametrize("words", [b"", b"{", b'{"tenant":"two","created":""}', b"\xff"])
def test_a_damaged_file_of_the_registry_is_told_in_one_line(base: Settings, words: bytes) -> None:
    create(base, "one")
    path = Registry(base.home).path("one")
    path.write_bytes(words)
    with pytest.raises(SettingsInvalid) as caught:
        load_settings(None, {"data": base.data, "tenant": "one"}, {})
    assert "one.json" in caught.value.detail
    assert "\n" not in caught.value.detail
    assert names_of(base) == ["main", "one"]


def test_a_password_in_a_place_is_kept_from_everybody_else(base: Settings) -> None:
    registry = Registry(base.home)
    url = "postgresql://writer:hunter2@db.example/app"
    registry.write(Registered("one", url, url, None, "2026-01-01T00:00:00.000000Z"))
    assert registry.path("one").stat().st_mode & 0o077 == 0
    assert "hunter2" not in str(view(base, "one"))


def test_store_and_journal_of_a_tenant_lie_apart(base: Settings, tmp_path: Path) -> None:
    both = str(tmp_path / "both")
    with pytest.raises(Refused, match="different directories"):
        create(base, "one", registering.Place(both, both))
    assert names_of(base) == ["main"]
    assert moved(base, tmp_path).store_file != base.store_file


def test_the_commands_create_list_show_and_close(tmp_path: Path) -> None:
    service = Service(tmp_path)
    made = service.command("tenant", "create", "acme", "--json")
    assert made.returncode == 0, made.stderr
    assert json.loads(made.stdout)["token"].startswith("unr_")
    again = service.command("tenant", "create", "acme")
    assert (again.returncode, again.stderr.count("\n")) == (3, 1)
    bad = service.command("tenant", "create", "No Name")
    assert (bad.returncode, bad.stderr.count("\n")) == (2, 1)
    decided = service.command(
        *("accept", "--tenant", "acme", "--operation", "a", "--entity", "case/1"),
        *("--action", "note", "--json"),
    )
    assert decided.returncode == 0, decided.stderr
    closed = service.command("tenant", "close", "acme", "--reason", "it ended", "--json")
    assert json.loads(closed.stdout) == {"tenant": "acme", "stage": "closed", "changed": True}
    shown = service.command("tenant", "show", "acme", "--json")
    assert shown.returncode == 1
    assert json.loads(shown.stdout)["detail"] == "it ended"
    listed = json.loads(service.command("tenant", "list", "--json").stdout)["tenants"]
    assert [one["tenant"] for one in listed] == ["main", "acme"]
    unknown = service.command("tenant", "show", "nobody")
    assert (unknown.returncode, unknown.stderr.count("\n")) == (2, 1), unknown.stderr
    reopened = service.command("recover", "reopen", "--tenant", "acme", "--json")
    assert reopened.returncode == 0, reopened.stderr
