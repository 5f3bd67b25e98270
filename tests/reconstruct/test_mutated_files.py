"""Files beside the databases, changed at every byte: found, or harmless, and never a traceback."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

import journal
from journal.errors import Recovering, Refused
from journal.files import SeenFile
from journal.locks import StopFile
from journal.record import Record
from journal.sqlite import stamp_of
from journal.witness import WitnessFile
from journal.worker import drive
from reconstruct import bundles, snapshots, verification
from tests.reconstruct.mutating import built
from tests.soak.processes import LONG
from tests.support.proof import record

if LONG:
    pytestmark = pytest.mark.soak

CHANGES = 1_000_000 if LONG else 60
"""Changes of one file; every byte where there are fewer."""
SAID = {"sequence", "history", "generation", "head", "control", "at", "instance"}
"""What a witness says for a person to read; what it decides by is the rest."""
COUNTED = {"changes": 0}


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> journal.Settings:
    return built(tmp_path_factory.mktemp("files"))


@pytest.fixture(scope="module", autouse=True)
def proof() -> Iterator[None]:
    yield
    if LONG:
        command = "UNREWIND_SOAK=1 python -m pytest -m soak tests/reconstruct/test_mutated_files.py"
        record("mutated-files", command, scope=COUNTED["changes"])


def changed(content: bytes, seed: int) -> Iterator[bytes]:
    """The content with one byte turned over, put in, left out or exchanged; and cut off."""
    chance = random.Random(seed)
    places = list(range(len(content)))
    for at in chance.sample(places, min(len(places), CHANGES)):
        for other in (
            content[:at] + bytes([content[at] ^ 1 << chance.randrange(8)]) + content[at + 1 :],
            content[:at] + content[at + 1 :],
            content[:at] + bytes([chance.randrange(256)]) + content[at:],
            content[:at],
        ):
            if other != content:
                COUNTED["changes"] += 1
                yield other


class Changing:
    """A file that is put back when the test ends."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.kept = path.read_bytes()

    def each(self, seed: int = 3) -> Iterator[bytes]:
        try:
            for other in changed(self.kept, seed):
                self.path.write_bytes(other)
                yield other
        finally:
            self.path.write_bytes(self.kept)


def test_p10_a_changed_witness_is_found(settings: journal.Settings) -> None:
    """It is damaged, of another journal, or beyond this one; or it decides nothing otherwise."""
    file = Changing(settings.witness_file)
    whole = WitnessFile(settings.witness_file).read()
    assert whole is not None
    for other in file.each():
        now = WitnessFile(settings.witness_file).read()
        if now is not None:
            told = {
                name for name in now.__struct_fields__ if getattr(now, name) != getattr(whole, name)
            }
            if told <= SAID:
                continue
            if now.epoch < whole.epoch:
                continue  # one from before a new beginning says nothing
        report = verification.verify(settings)
        assert report.verdict in {"witness", "closed", "journal-rewound"}, other
        kinds = {item.kind for item in report.findings}
        assert kinds & {"witness", "closed", "journal-rewound"}, other


def test_p9_a_stop_file_of_any_bytes_stops(settings: journal.Settings) -> None:
    stop = StopFile(settings.beside("stop"))
    stop.put_up("a test", "2026-03-14T09:26:53.000000Z", verdict="rewound")
    try:
        for other in Changing(stop.path).each():
            with pytest.raises(Recovering):
                StopFile(stop.path).check()
            assert StopFile(stop.path).stands(), other
    finally:
        stop.path.unlink()


def test_h6_a_changed_note_of_the_store_file_vouches_for_nothing(
    settings: journal.Settings,
) -> None:
    """The next start compares every head, as it does without a note."""
    stamp = stamp_of(settings.store_file)
    SeenFile(settings.seen_file).note(stamp)  # type: ignore[arg-type]
    assert SeenFile(settings.seen_file).names(stamp)
    whole = SeenFile(settings.seen_file).read()
    for other in Changing(settings.seen_file).each():
        seen = SeenFile(settings.seen_file)
        assert seen.read() == whole or not seen.names(stamp), other
    assert SeenFile(settings.seen_file).names(stamp)


def test_p8_a_changed_bundle_is_not_what_was_kept(settings: journal.Settings) -> None:
    last = max(settings.evidence_home.iterdir())
    reading = Record(settings, read_only=True)
    drive(reading.open())
    try:
        known = drive(bundles.journalled(reading))
    finally:
        drive(reading.close())

    def look() -> bundles.Bundle:
        (found,) = bundles.list_bundles(settings, known, last, verify=True)
        return found

    assert (look().journalled, look().findings) == (True, [])
    for path in sorted(last.rglob("*")):
        if not path.is_file():
            continue
        file = Changing(path)
        for _ in _some(file):
            found = look()
            assert found.findings or not found.journalled, path
        path.unlink()
        found = look()
        assert found.findings or not found.journalled, path
        path.write_bytes(file.kept)
    beside = last / "store" / "more.db"
    beside.write_bytes(b"")
    assert look().findings
    beside.unlink()
    assert (look().journalled, look().findings) == (True, [])


def _some(file: Changing) -> Iterator[bytes]:
    """A few changes of a file of any size."""
    for number, other in enumerate(file.each()):
        if number == (400 if LONG else 12):
            break
        yield other


def test_p10_a_changed_snapshot_is_refused(settings: journal.Settings, tmp_path: Path) -> None:
    folder = tmp_path / "kept"
    reading = Record(settings, read_only=True)
    drive(reading.open())
    try:
        taken = drive(snapshots.snapshot(reading, folder))
    finally:
        drive(reading.close())
    history = taken.place.history
    for name in (snapshots.FILE, snapshots.MANIFEST):
        for other in _some(Changing(folder / name)):
            try:
                found = snapshots.read_manifest(folder)
            except Refused:
                continue
            # It may only say otherwise where and when it was taken: the copy says that, too.
            same = msgspec.structs.replace(
                found, place=taken.place, taken=taken.taken, size=taken.size
            )
            if same != taken:
                with pytest.raises(Refused):
                    snapshots.restore(settings, folder, "main", history)
            assert name == snapshots.MANIFEST, other
    assert snapshots.read_manifest(folder) == taken
