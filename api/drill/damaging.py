"""Damaging: what a journal must not hide and control must not survive, tried on copies."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

import msgspec

from api.drill import facts
from api.drill.copying import embedded
from api.drill.site import Site
from api.drill.story import Story
from api.drill.town import SERVERS
from api.opening import ask
from journal.driving import drive
from journal.entry import Entry, seal
from journal.errors import EngineError, Forked, UnrewindError
from journal.intake import append_sealed
from journal.record import Record
from journal.settings import Settings
from journal.status import status
from reconstruct.verification import verify

_ALLOW = "DROP TRIGGER entries_no_delete"
_NEWEST = "SELECT max(position) FROM entries WHERE stream = 'decisions'"
VICTIM = "submit-lost"
"""The operation whose entry is damaged: later ones rest on it."""


def close_without_control(story: Story) -> None:
    """A tenant whose control has a hole, or whose journal is gone, is closed."""
    with story.step("P9", "take a control entry out of a copy's journal"):
        copy = _copy(story, "control")
        remove = "DELETE FROM entries WHERE stream = 'control' AND sequence = 3"
        facts.alter(copy.journal_file, _ALLOW, remove)
        _is_closed(story, copy, "with a control entry missing")
    _decides_nothing(story, copy)
    with story.step("P9", "take the journal away from a copy"):
        copy = _copy(story, "without-journal")
        for path in copy.journal_file.parent.glob("*"):
            path.unlink()
        _is_closed(story, copy, "with its journal missing")


def _is_closed(story: Story, settings: Settings, what: str) -> None:
    try:
        stands = ask(settings, status)
    except UnrewindError as error:
        story.judge("P9", f"a tenant {what}", "closed", f"refused: {error}", held=True)
        return
    story.check("P9", f"a tenant {what}", "closed", stands.stage)


def _decides_nothing(story: Story, settings: Settings) -> None:
    """A command on the copy decides nothing, whatever the copy's stage is said to be."""
    site = Site(story.site.folder / "copies" / "control-site")
    text = story.site.config.read_text(encoding="utf-8")
    before = f'data = "{story.settings.data}"'
    lines = text.replace(before, f'data = "{settings.data}"').splitlines(keepends=True)
    site.config.write_text("".join(line for line in lines if not line.startswith(SERVERS)))
    arguments = ("--operation", "uncontrolled", "--entity", "document/x", "--action", "submit")
    ran = story.site.__class__.run(site, "accept", *arguments)
    site.close()
    story.check("P9", "an operation without readable control ends with", 3, ran.code)


def roll_both_back(story: Story) -> None:
    """Store and journal of one earlier moment agree with each other, and not with the witness."""
    with story.step("P8", "roll store and journal of a copy back to one moment"):
        copy = _copy(story, "both")
        then: Settings = story.facts["then"]
        for source, target in (
            (then.store_file, copy.store_file),
            (then.journal_file, copy.journal_file),
        ):
            for path in target.parent.glob(f"{target.name}*"):
                path.unlink()
            shutil.copyfile(source, target)
        stands = ask(copy, status)
        story.check("P8", "the witness remembers a journal that went on", "closed", stands.stage)
        story.check("P8", "its verdict", "journal-rewound", stands.verdict)


def tell_damage_apart(story: Story) -> None:
    """Each kind of damage is found and called by its name; the original holds what it held."""
    damages: Sequence[tuple[str, str, Callable[[Path], None]]] = (
        ("a flipped bit", "mismatch", _flip),
        ("a removed entry", "gap", _remove),
        ("a truncated journal", "truncated", _truncate),
    )
    for what, kind, damage in damages:
        with story.step("P10", f"damage a copy: {what}"):
            copy = _copy(story, kind)
            damage(copy.journal_file)
            _is_named(story, copy, what, kind)
    with story.step("P10", "append another decision where one stands"):
        copy = _copy(story, "fork")
        _fork(copy, story.facts["sealed"])
        _is_named(story, copy, "a second decision at one place", "fork")
    with story.step("P10", "try to change an entry"):
        copy = _copy(story, "changed")
        for verb in ("UPDATE entries SET body = x'00'", "DELETE FROM entries"):
            refused = _is_refused(copy.journal_file, verb)
            name = verb.partition(" ")[0].lower()
            story.check("P10", f"the journal's own tables refuse to {name}", True, refused)


def _is_named(story: Story, copy: Settings, what: str, kind: str) -> None:
    report = verify(copy)
    kinds = sorted({str(finding.kind) for finding in report.findings})
    found = f"{report.verdict}: {', '.join(kinds) or 'nothing'}"
    story.judge("P10", f"verify finds {what}", kind, found, held=kind in kinds)


def _fork(settings: Settings, stored: Entry) -> None:
    """A rival of an entry, which is kept and never taken for it."""
    envelope = msgspec.structs.replace(stored.envelope, operation="rival", actor="somebody else")
    rival = seal(envelope, stored.body)
    record = Record(settings)
    drive(record.open(create=False))
    try:
        with suppress(Forked):
            drive(append_sealed(record, [(rival.text, rival.body)]))
    finally:
        drive(record.close())


def _is_refused(path: Path, sql: str) -> bool:
    try:
        facts.alter(path, sql)
    except EngineError:
        return True
    return False


def fingerprints(where: facts.Where) -> list[str]:
    """A hash of each entry's bytes, in the journal's order."""
    sql = "SELECT CAST(envelope AS BLOB), body FROM entries ORDER BY position"
    return [
        sha256(bytes(text) + b"\0" + bytes(body)).hexdigest()
        for text, body in facts.rows_of(where, sql)
    ]


def _copy(story: Story, name: str) -> Settings:
    """A copy of the tenant as files; nobody has it open."""
    return embedded(story.settings, story.site.folder / "copies" / name)


def _flip(journal: Path) -> None:
    content = bytearray(journal.read_bytes())
    at = content.index(f'"operation":"{VICTIM}"'.encode()) + len('"operation":"s')
    content[at] ^= 1
    journal.write_bytes(content)


def _remove(journal: Path) -> None:
    facts.alter(journal, _ALLOW, f"DELETE FROM entries WHERE operation = '{VICTIM}'")


def _truncate(journal: Path) -> None:
    cut = f"DELETE FROM entries WHERE position > ({_NEWEST}) - 3"
    facts.alter(journal, _ALLOW, cut)
