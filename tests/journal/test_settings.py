"""Settings: one reader, three sources, and errors that name what is wrong."""

from pathlib import Path

import pytest

from journal.errors import SettingsInvalid
from journal.lifecycle import Kind, Owner
from journal.settings import Settings, load
from tests.support.tenants import make_settings

FILE = """
instance = "production"
port = 9000
max_batch = 10

[lifecycle.case]
kind = "free"

[lifecycle.invoice]
owner = "caller"
initial = "open"
withdrawn = ["void"]
[lifecycle.invoice.actions.settle]
from = ["open"]
to = "settled"
needs_version = true
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "unrewind.toml"
    path.write_text(FILE, encoding="utf-8")
    return path


def test_the_file_is_overridden_by_the_environment_and_that_by_flags(config: Path) -> None:
    environment = {"UNREWIND_PORT": "9001", "UNREWIND_MAX_BATCH": "20"}
    found = load(config, {"max_batch": 30, "host": None}, environment)
    assert (found.instance, found.port, found.max_batch) == ("production", 9001, 30)
    assert found.host == Settings().host


def test_lifecycles_come_from_the_file_beside_the_shipped_one(config: Path) -> None:
    found = load(config, environment={"UNREWIND_LIFECYCLE": "ignored"}).lifecycles
    assert set(found) == {"document", "case", "invoice"}
    assert found["case"].kind is Kind.FREE
    assert found["invoice"].owner is Owner.CALLER
    assert found["invoice"].actions["settle"].source == ("open",)


def test_the_file_may_be_named_by_the_environment(config: Path) -> None:
    assert load(environment={"UNREWIND_CONFIG": str(config)}).port == 9000


def test_without_a_file_the_defaults_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert load(environment={}) == Settings()


def test_a_named_file_must_exist(tmp_path: Path) -> None:
    with pytest.raises(SettingsInvalid, match="no configuration file"):
        load(tmp_path / "absent.toml", environment={})


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("port = ", "unrewind.toml"),
        ("prot = 1", "prot"),
        ('port = "high"', "port"),
        ("port = 65536", "port"),
        ("port = -1", "port"),
        ("max_batch = 0", "max_batch"),
        ("max_waiting = -5", "max_waiting"),
        ("max_body = 0", "max_body"),
        ("lock_timeout = 0.0", "lock_timeout"),
        ("detect_every = nan", "detect_every"),
        ("handoff_every = -1.0", "handoff_every"),
        ('tenant = "../other"', "tenant"),
        ('instance = ""', "instance"),
        ('store = "same"\njournal = "same"', "different directories"),
        ('store = "data/journal"', "different directories"),
        ('[lifecycle.case]\nkind = "fre"', "lifecycle"),
        ('[lifecycle.case]\nkind = "free"\ncolour = 1', "colour"),
        ("[lifecycle.case]", "lifecycle.case"),
        ('[lifecycle.control]\nkind = "free"', "control"),
        ('[lifecycle.case.actions.x]\nfrom = ["nowhere"]\nto = "y"', "nowhere"),
        ("\xff", "unrewind.toml"),
    ],
)
def test_a_setting_that_makes_no_sense_is_refused_by_name(
    config: Path, text: str, named: str
) -> None:
    config.write_bytes(text.encode("latin-1"))
    with pytest.raises(SettingsInvalid) as refused:
        load(config, environment={})
    assert named in refused.value.detail


def test_an_unknown_flag_is_refused(config: Path) -> None:
    with pytest.raises(SettingsInvalid, match="hsot"):
        load(config, {"hsot": "x"}, {})


def test_store_and_journal_reached_by_a_link_are_still_one(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "other").symlink_to(tmp_path / "one")
    flags = {"store": str(tmp_path / "one"), "journal": str(tmp_path / "other")}
    with pytest.raises(SettingsInvalid, match="different directories"):
        load(None, flags, {"UNREWIND_CONFIG": str(_empty(tmp_path))})


def _empty(folder: Path) -> Path:
    path = folder / "empty.toml"
    path.write_text("", encoding="utf-8")
    return path


def test_files_lie_where_the_settings_say(tmp_path: Path) -> None:
    found = make_settings(tmp_path, tenant="t2", journal=str(tmp_path / "disk2"))
    assert found.store_file == tmp_path / "data/store/t2.db"
    assert found.journal_file == tmp_path / "disk2/t2.db"
    assert found.beside("stop") == tmp_path / "data/t2.stop"
