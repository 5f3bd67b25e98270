"""Bundles: which evidence there is, and whether it is still what was kept."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

import msgspec
from msgspec import Struct

from journal.errors import NotFound
from journal.record import Record
from journal.settings import Settings
from reconstruct.evidence import MANIFEST, PARTIAL, Manifest, bundles, hash_file


class Bundle(Struct, frozen=True):
    """One bundle of evidence.

    ``whole`` is false for one whose making was cut off: it belongs to no recovery. ``journalled``
    says whether a control entry names the manifest's hash, null when the journal cannot be read.
    ``findings`` are sentences on what is not as it was kept; sizes in bytes.
    """

    directory: str
    whole: bool
    taken: str | None
    instance: str | None
    reason: str | None
    pieces: int
    size: int
    sha256: str | None
    journalled: bool | None
    missing: dict[str, str]
    findings: list[str]


async def journalled(record: Record) -> list[str]:
    """The hashes of the manifests that control entries name, in their order."""
    found = []
    for row in await record.journal().control():
        try:
            facts = msgspec.json.decode(row.body)
        except (msgspec.MsgspecError, RecursionError):
            continue
        named = facts.get("evidence") if isinstance(facts, dict) else None
        if isinstance(named, dict) and isinstance(named.get("sha256"), str):
            found.append(named["sha256"])
    return found


def list_bundles(
    settings: Settings, known: list[str] | None, directory: Path | None, *, verify: bool
) -> list[Bundle]:
    """Every bundle of the tenant, oldest first, or the one in ``directory``.

    With ``verify`` each of its files is hashed anew. ``known`` are the hashes that the journal
    names, None when it cannot be read. Raises NotFound for a directory that is none.
    """
    if directory is None:
        return [_look(path, known, verify=verify) for path in bundles(settings)]
    if not directory.is_dir():
        raise NotFound(f"there is no directory {directory}; `unrewind evidence` lists the bundles")
    return [_look(directory, known, verify=verify)]


def _look(path: Path, known: list[str] | None, *, verify: bool) -> Bundle:
    try:
        content = (path / MANIFEST).read_bytes()
        manifest = msgspec.json.decode(content, type=Manifest)
    except (OSError, msgspec.MsgspecError, RecursionError) as error:
        partial = path.name.endswith(PARTIAL)
        why = f"{MANIFEST}: {getattr(error, 'strerror', None) or error}"
        return Bundle(
            str(path), False, None, None, None, 0, 0, None, None, {}, [] if partial else [why]
        )
    digest = sha256(content).hexdigest()
    findings = [*_differences(path, manifest)] if verify else []
    named = None if known is None else digest in known
    return Bundle(
        directory=str(path),
        whole=not path.name.endswith(PARTIAL),
        taken=manifest.taken,
        instance=manifest.instance,
        reason=manifest.reason,
        pieces=len(manifest.pieces),
        size=sum(piece.size for piece in manifest.pieces),
        sha256=digest,
        journalled=named,
        missing=manifest.missing,
        findings=findings,
    )


def _differences(path: Path, manifest: Manifest) -> list[str]:
    """What of a bundle's files is not as its manifest says."""
    findings = []
    for piece in manifest.pieces:
        file = path / piece.name
        try:
            size, digest = file.stat().st_size, hash_file(file)
        except OSError as error:
            findings.append(f"{piece.name}: {error.strerror or error}")
            continue
        if size != piece.size:
            findings.append(f"{piece.name} has {size} bytes, {piece.size} were kept")
        elif digest != piece.sha256:
            findings.append(f"{piece.name} hashes to {digest}, {piece.sha256} was kept")
    kept = {piece.name for piece in manifest.pieces} | {MANIFEST}
    for file in sorted(path.rglob("*")):
        name = file.relative_to(path).as_posix()
        if not file.is_dir() and name not in kept:
            findings.append(f"{name} was not kept with it")
    return findings
