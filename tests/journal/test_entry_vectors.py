"""The test vectors, read by the project and by the independent check: both must agree."""

import base64
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from journal import entry as entries
from journal.errors import Invalid
from tests.journal import independent

ROOT = Path(__file__).resolve().parents[2]
VECTORS = ROOT / "tests/vectors/entries.json"
DOCUMENT: dict[str, Any] = json.loads(VECTORS.read_bytes())
VALID = DOCUMENT["valid"]
INVALID = DOCUMENT["invalid"]


def names(items: list[dict[str, Any]]) -> list[str]:
    return [item["name"] for item in items]


def bytes_of(item: dict[str, Any]) -> tuple[bytes, bytes]:
    text = item.get("envelope")
    envelope = bytes.fromhex(item["envelope_hex"]) if text is None else text.encode()
    return envelope, base64.b64decode(item["body_base64"], validate=True)


@pytest.mark.parametrize("item", VALID, ids=names(VALID))
def test_a_valid_vector_is_read_with_its_digest(item: dict[str, Any]) -> None:
    envelope, body = bytes_of(item)
    entry = entries.read(envelope, body)
    assert entry.digest == item["digest"] == independent.check(envelope, body)
    assert (entry.text, entry.body) == (envelope, body)


@pytest.mark.parametrize("item", VALID, ids=names(VALID))
def test_a_valid_vector_of_version_1_is_admitted_and_sealed_to_the_same_bytes(
    item: dict[str, Any],
) -> None:
    envelope, body = bytes_of(item)
    if item["envelope_fields"]["v"] != entries.VERSION:
        with pytest.raises(Invalid) as refused:
            entries.admit(envelope, body)
        assert refused.value.members == {"field": "v"}
        return
    entry = entries.admit(envelope, body)
    assert entries.seal(entry.envelope, body) == entry
    assert entries.as_object(entry.envelope) == {
        **item["envelope_fields"],
        "releases": tuple(item["envelope_fields"]["releases"]),
    }


@pytest.mark.parametrize("item", INVALID, ids=names(INVALID))
def test_an_invalid_vector_is_refused(item: dict[str, Any]) -> None:
    envelope, body = bytes_of(item)
    with pytest.raises(Invalid):
        entries.admit(envelope, body)
    with pytest.raises(ValueError):  # noqa: PT011 - every refusal of the independent check
        independent.check(envelope, body)


def test_h12_a_later_version_keeps_its_unknown_fields_under_the_digest() -> None:
    item = next(item for item in VALID if item["name"] == "later-version-key-order")
    envelope, body = bytes_of(item)
    entry = entries.read(envelope, body)
    assert "\U00010000".encode() in entry.text
    assert entries.digest_of(envelope.replace(b'"9":[]', b'"9":[1]')) != entry.digest


def test_the_vector_file_is_what_its_generator_writes() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.vectors.generate", "--check"],
        cwd=ROOT,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0


def test_the_independent_check_reads_the_vectors_alone() -> None:
    done = subprocess.run(
        [sys.executable, "-I", str(ROOT / "tests/journal/independent.py"), str(VECTORS)],
        timeout=60,
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0
    assert done.stdout.count("ok ") >= len(VALID) + len(INVALID)
