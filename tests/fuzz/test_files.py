"""Files that somebody else wrote, or half of them: taken, or refused in one line, or as nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from journal import agreement, files
from journal.errors import Recovering, Refused, SettingsInvalid
from journal.files import SeenFile
from journal.locks import StopFile
from journal.registry import Registered, Registry
from journal.sql import Stamp
from journal.witness import Witness, WitnessFile, WitnessUnreadable
from reconstruct import bundles, snapshots
from reconstruct.evidence import MANIFEST as MANIFEST_NAME
from reconstruct.evidence import Manifest, Piece
from tests.fuzz.mutating import DEPTH, FUZZED, deep, restructured, spoiled, taken
from tests.soak.processes import LONG
from tests.support.tenants import make_settings

if LONG:
    pytestmark = pytest.mark.soak

MOMENT = "2026-03-14T09:26:53.000000Z"
WITNESS = Witness(
    1, "main", "default", "ab" * 16, 0, 7, "cd" * 32, 2, 5, "0f" * 16, 1, "cd" * 32, MOMENT
)
REGISTERED = Registered("shop", None, "/mnt/journal", None, MOMENT, "somebody")
MANIFEST = Manifest(
    "unrewind-evidence-1",
    "main",
    "default",
    MOMENT,
    "a test",
    [Piece("control.json", 3, "ab" * 32)],
    {"store/main.db": "it was gone"},
    [None],
)


@pytest.fixture
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("files")


def contents(whole: object) -> st.SearchStrategy[bytes]:
    """What a file may hold instead of ``whole``."""
    raw = msgspec.json.encode(whole)
    other = restructured(st.just(msgspec.to_builtins(whole))).map(msgspec.json.encode)
    return spoiled(st.just(raw)) | other | st.binary(max_size=64)


DEEP = [deep(b"["), deep(b'{"a":'), deep(b"[") + b"]" * DEPTH]


def witness(folder: Path, content: bytes) -> None:
    file = WitnessFile(folder / "main.json")
    file.path.write_bytes(content)
    found = taken(file._read, by=WitnessUnreadable)
    shown = file.read()
    assert shown == found
    assert (file.fault is None) == (found is not None)
    assert "\n" not in (file.fault or "")
    if found is not None:
        assert msgspec.json.decode(msgspec.json.encode(found), type=Witness) == found


def stop(folder: Path, content: bytes) -> None:
    file = StopFile(folder / "main.stop")
    file.path.write_bytes(content)
    assert file.stands()
    assert isinstance(file.facts(), dict)
    assert taken(file.check, by=Recovering) is None
    with pytest.raises(Recovering):
        file.check()


def seen(folder: Path, content: bytes) -> None:
    file = SeenFile(folder / "main.seen")
    file.path.write_bytes(content)
    found = file.read()
    assert found is None or isinstance(found, files.Seen)
    assert file.watched() in {True, False}


def registered(folder: Path, content: bytes) -> None:
    registry = Registry(folder)
    path = registry.path("shop")
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content)
    found = taken(registry.read, "shop", by=SettingsInvalid)
    if found is not None:
        registry.write(found)
        assert registry.read("shop") == found


def declared(folder: Path, content: bytes) -> None:
    settings = make_settings(folder)
    agreement._path(settings).parent.mkdir(exist_ok=True)
    agreement._path(settings).write_bytes(content)
    found = agreement._read(settings)
    assert found is None or isinstance(found, agreement.Declared)


def bundle(folder: Path, content: bytes) -> None:
    settings = make_settings(folder)
    place = settings.evidence_home / "main-20260314T092653000000Z"
    place.mkdir(parents=True, exist_ok=True)
    (place / MANIFEST_NAME).write_bytes(content)
    (found,) = bundles.list_bundles(settings, [], place, verify=True)
    assert all("\n" not in line for line in found.findings)
    assert not found.journalled


def snapshot(folder: Path, content: bytes) -> None:
    (folder / snapshots.FILE).write_bytes(b"")
    (folder / snapshots.MANIFEST).write_bytes(content)
    taken(snapshots.read_manifest, folder, by=Refused)


SNAPSHOT = {
    "format": 1,
    "tenant": "main",
    "instance": "default",
    "place": {"history": "0f" * 16, "generation": 1, "sequence": 5, "digest": "ab" * 32},
    "taken": MOMENT,
    "size": 0,
    "sha256": "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
    "sound": True,
    "rows": False,
}
KINDS: dict[str, tuple[Any, Any]] = {
    "witness": (witness, WITNESS),
    "stop": (stop, {"reason": "a test", "at": MOMENT, "verdict": "rewound", "sequence": 3}),
    "seen": (seen, files.Seen((1, 2, 3, 4, 5), True)),
    "registered": (registered, REGISTERED),
    "declared": (declared, agreement.declaration(make_settings(Path()))),
    "bundle": (bundle, MANIFEST),
    "snapshot": (snapshot, SNAPSHOT),
}


@pytest.mark.parametrize("kind", KINDS)
@FUZZED
@given(data=st.data())
def test_a_file_is_taken_or_refused(folder: Path, kind: str, data: Any) -> None:
    look, whole = KINDS[kind]
    look(folder, data.draw(contents(whole)))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("content", [*DEEP, b'"\xff"', b'{"\xff":1}', b"\x00" * 9], ids=range(6))
def test_a_file_that_no_parser_follows_is_refused(folder: Path, kind: str, content: bytes) -> None:
    look, whole = KINDS[kind]
    look(folder, msgspec.json.encode(whole))
    look(folder, content)
    # The same behind a name that is known.
    name = next(iter(msgspec.to_builtins(whole))) if not isinstance(whole, Stamp) else "parts"
    look(folder, b'{"%s":%s' % (str(name).encode(), content))
