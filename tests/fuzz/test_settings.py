"""Configuration by hand: taken as it means, or refused in one line that shows no secret."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from journal.errors import Invalid, Refused, SettingsInvalid
from journal.nats.address import address_of
from journal.places import masked
from journal.postgres.where import JOURNAL, STORE, where
from journal.settings import Settings, load
from tests.fuzz.mutating import FUZZED, restructured, spoiled, taken
from tests.soak.processes import LONG

if LONG:
    pytestmark = pytest.mark.soak

SECRET = "s3cr3t-in-a-url"
WHOLE = """
tenant = "shop"
instance = "one"
port = 8421
lock_timeout = 2.5
accept = ["same-server"]
max_undo = 7

[lifecycle.order]
initial = "new"
version = "2"
withdrawn = ["gone"]

[lifecycle.order.actions.approve]
from = ["new", "approved"]
to = "approved"

[lifecycle.order.actions.release]
from = ["approved"]
to = "approved"
needs_version = true
same_version = true
releases = ["post", "bank"]

[[lifecycle.order.actions.approve.commands]]
name = "tell"
lane = "mail"

[lifecycle.order.actions.drop]
from = ["approved"]
to = "gone"

[lifecycle.free]
kind = "free"
owner = "caller"

[lane.post]
rate = 2.0
batch = 2
lease = 30.0
attempts = 4

[lane.bank]
receiver = "bank"

[lane.mail]
effect = "internal"
backoff = 1.0

[receiver.bank]
url = "https://bank.example/pay"
status_url = "https://bank.example/pay/{release}"
contract = "queryable"
window = 3600.0
secret_env = "BANK_SECRET"

[alert]
webhook = "https://example.com/hook"

[objective]
safe_within = 60.0
lost = 1
"""
URLS = [
    b"postgresql://u:"
    + SECRET.encode()
    + b"@h1:5432,h2:5433/db?sslmode=require&options=-csearch%3Dx",
    b"postgresql:///db?host=/var/run&password=" + SECRET.encode(),
    b"nats://u:" + SECRET.encode() + b"@n1:4222,n2?monitor=http://n1:8222,https://n2:8222",
    b"tls://" + SECRET.encode() + b"@n1?ca=/etc/ca.pem&cert=c&key=k",
]


@pytest.fixture
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("settings")


def test_the_valid_one_is_taken(folder: Path) -> None:
    (folder / "unrewind.toml").write_text(WHOLE)
    found = load(folder / "unrewind.toml", environment={})
    assert (found.tenant, found.lane["post"].attempts) == ("shop", 4)


def look(
    folder: Path, content: bytes, environment: dict[str, str] | None = None
) -> Settings | None:
    """Settings that are taken are the same when they are written out and read again."""
    file = folder / "unrewind.toml"
    file.write_bytes(content)
    data = {"data": str(folder / "data")}
    found = taken(load, file, data, environment or {}, by=SettingsInvalid)
    if found is not None:
        again = msgspec.convert(msgspec.to_builtins(found), Settings)
        assert again == found
    return found


@FUZZED
@given(data=st.data())
def test_a_file_is_taken_or_refused(folder: Path, data: Any) -> None:
    look(folder, data.draw(spoiled(st.just(WHOLE.encode()))))


@FUZZED
@given(data=st.data())
def test_what_the_tables_declare_is_taken_or_refused(folder: Path, data: Any) -> None:
    """Every table with other values in it: numbers, names, references, contradictions."""
    (folder / "unrewind.toml").write_text(WHOLE)
    whole = msgspec.to_builtins(load(folder / "unrewind.toml", environment={}))
    changed = data.draw(restructured(st.just(whole)))
    taken(load, folder / "unrewind.toml", _named(changed), {}, by=SettingsInvalid)


def _named(changed: Any) -> Any:
    if not isinstance(changed, dict):
        return {"lane": changed}
    return {name: value for name, value in changed.items() if name != "data"}


@FUZZED
@given(
    name=st.sampled_from([name.upper() for name in Settings.__struct_fields__]),
    value=st.text(max_size=30).filter(lambda text: "\0" not in text)
    | st.sampled_from(
        ["-1", "0", "1e999", "nan", "inf", "", " 7", "\u0667", "1" * 5000, "true", "[]"]
    ),
)
def test_a_variable_is_taken_or_refused(folder: Path, name: str, value: str) -> None:
    look(folder, WHOLE.encode(), {f"UNREWIND_{name}": value})


@FUZZED
@given(data=st.data())
def test_a_url_of_an_engine_is_taken_or_refused_without_its_secret(folder: Path, data: Any) -> None:
    url = data.draw(spoiled(st.sampled_from(URLS))).decode(errors="surrogateescape")
    for call in (
        lambda: address_of(url, {}),
        lambda: where(url, STORE, "shop"),
        lambda: where(url, JOURNAL, "shop"),
    ):
        found: Any = taken(call, by=SettingsInvalid, hides=SECRET)
        assert found is None or "\n" not in found.label
    if url.partition("?")[0] in {whole.decode().partition("?")[0] for whole in URLS}:
        assert SECRET not in masked(url)
    for name in ("store", "journal"):
        settings = taken(
            load, None, {"data": str(folder / "data"), name: url}, {}, by=(SettingsInvalid, Refused)
        )
        assert settings is None or getattr(settings, name) == url


@FUZZED
@given(data=st.data())
def test_the_name_of_a_tenant_never_leaves_its_directory(folder: Path, data: Any) -> None:
    text = data.draw(
        st.text(max_size=12) | st.sampled_from(["../x", "a/b", ".", "A", "a\n", "a" * 65])
    )
    found = taken(
        load,
        None,
        {"data": str(folder / "data"), "tenant": text},
        {},
        by=(SettingsInvalid, Invalid),
    )
    if found is not None:
        assert found.store_file.parent == folder / "data" / "store"
