"""Damage to a journal whose store was rewound, and the abandonment of what it cuts off."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from journal import reading, tracing
from journal.entry import digest_of
from journal.errors import Refused
from reconstruct import recovery
from reconstruct.abandoning import Ended, abandon
from tests.reconstruct.scenes import Scene, query, raw

REASON, EVIDENCE = "lost for good", "both disks were searched"


def damage(scene: Scene, folder: Path, *statements: Any) -> None:
    """Rewind the store, and change the journal's file behind its back."""
    scene.restore(folder / "old")
    scene.close()
    raw(scene.settings.journal_file, *statements)
    scene.open()


def removed(entity: str, revision: int) -> str:
    """An entry that is gone."""
    return f"DELETE FROM entries WHERE entity = '{entity}' AND revision = {revision}"


def flipped(entity: str, revision: int) -> str:
    """A body that its envelope does not name."""
    where = f"entity = '{entity}' AND revision = {revision}"
    return f"UPDATE entries SET body = CAST(body || x'00' AS BLOB) WHERE {where}"


def swapped(scene: Scene, entity: str, revision: int) -> tuple[str, tuple[Any, ...]]:
    """An entry sealed anew over another predecessor, digest and all: it can be read."""
    where = f"entity = '{entity}' AND revision = {revision}"
    file = scene.settings.journal_file
    fields = json.loads(query(file, f"SELECT envelope FROM entries WHERE {where}")[0][0])
    before = {"digest": "ab" * 32, "history": "cd" * 16, "revision": max(revision - 1, 1)}
    fields["predecessor"] = before
    forged = json.dumps(fields, separators=(",", ":"), sort_keys=True, ensure_ascii=False)
    digest = bytes.fromhex(digest_of(forged.encode()))
    return (f"UPDATE entries SET envelope = ?, digest = ? WHERE {where}", (forged, digest))


def apply(scene: Scene) -> recovery.Applied:
    """A recovery up to where the new history has started; the tenant is closed."""
    recovery.stop(scene.settings, "a test")
    scene.do(recovery.begin, "a test")
    return scene.do(recovery.apply)


def reopen(scene: Scene) -> None:
    """The rest of it, although releases were not reconciled."""
    scene.do(recovery.reopen, despite={"reconciled"})


def named(scene: Scene, entity: str) -> list[str]:
    """What has to be named, as the refusal says it."""
    with pytest.raises(Refused) as refused:
        scene.do(abandon, entity, REASON, EVIDENCE, [])
    return [each["operation"] for each in refused.value.members["drop"]]


def cut(scene: Scene, entity: str) -> Ended:
    """Abandon the entity, everything named."""
    try:
        return scene.do(abandon, entity, REASON, EVIDENCE, [], "an operator")
    except Refused as refused:
        if "drop" not in refused.members:
            raise
        drop = [each["operation"] for each in refused.members["drop"]]
    return scene.do(abandon, entity, REASON, EVIDENCE, drop, "an operator")


def shown(scene: Scene, entity: str) -> list[tuple[int, str | None]]:
    """An entity's history, with what is wrong with each revision."""
    view = scene.do(tracing.read_history, entity, 1, None)
    return [(step.revision, step.flaw) for step in view.revisions]


def gaps(scene: Scene) -> list[Any]:
    """Every incomplete history."""
    return scene.do(reading.read_gaps, None, None).items
