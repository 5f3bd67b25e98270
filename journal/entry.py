"""The entry: a decision as the journal holds it, version 1 of the format.

An entry is envelope bytes, body bytes and a digest. The envelope is a JSON object in RFC 8785 form
that holds only strings, integers below 2^53, booleans, null, arrays and objects. The digest is
SHA-256(0x00 ‖ envelope bytes), the leaf hash of RFC 6962. Only stored bytes are ever hashed, never
a re-encoding. ``tests/vectors/entries.json`` fixes the format for other languages.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any

import msgspec
from msgspec import Struct

from journal.errors import Invalid

VERSION = 1
NO_BODY_TYPE = "application/octet-stream"
JSON_TYPE = "application/json"
GENESIS = "0" * 64
"""Digest that stands for "nothing yet" in a marker or head. No entry has it."""

MAX_INTEGER = 2**53 - 1
MAX_ENTITY_ID = 512
MAX_OPERATION = 256
MAX_ACTION = 128
MAX_STRING = 1024
MAX_RELEASES = 64

# The fields of every struct stand in code-point order, which for these names is RFC 8785's order;
# msgspec writes fields in the order of their declaration and strings in RFC 8785's escaping.
# gc=False: these hold no cycles, and many are alive at once in a batch.


class Predecessor(Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """The decision before this one, possibly in an earlier history."""

    digest: str
    history: str
    revision: int


class Outcome(Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """State reached, and SHA-256 of the entity's data as stored (null: the caller keeps it)."""

    data: str | None
    state: str


class Release(Struct, frozen=True, forbid_unknown_fields=True):
    """One external effect that the decision permits."""

    corrects: str | None
    digest: str | None
    id: str
    lane: str
    receiver: str | None
    recipient: str | None
    version: str | None


class Body(Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """What the body bytes must hash to, their length in bytes and their media type."""

    sha256: str
    size: int
    type: str


class Envelope(Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """What was decided and where it belongs in the history."""

    action: str
    actor: str | None
    at: str
    body: Body
    entity: str
    generation: int
    history: str
    lifecycle: str
    operation: str
    outcome: Outcome
    predecessor: Predecessor | None
    principal: str | None
    recorded: str
    releases: tuple[Release, ...]
    revision: int
    sequence: int | None
    tenant: str
    v: int
    version: str | None


class Entry(Struct, frozen=True, gc=False):
    """An envelope with the exact bytes it was read from or sealed as.

    ``text`` is the envelope as UTF-8, ``digest`` 64 lowercase hex digits.
    """

    envelope: Envelope
    text: bytes
    body: bytes
    digest: str


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Envelope).decode
_decode_fields = msgspec.json.Decoder(dict[str, Any]).decode


def digest_of(text: bytes) -> str:
    """SHA-256(0x00 ‖ envelope bytes) in lowercase hex (RFC 6962, section 2.1)."""
    return sha256(b"\0" + text).hexdigest()


def body_of(body: bytes, media_type: str) -> Body:
    """The body's entry in the envelope."""
    return Body(sha256(body).hexdigest(), len(body), media_type)


def seal(envelope: Envelope, body: bytes) -> Entry:
    """Fix an envelope's bytes and digest. The caller vouches for the fields (``check``)."""
    text = _encode(envelope)
    return Entry(envelope, text, body, sha256(b"\0" + text).hexdigest())


def read(text: bytes, body: bytes) -> Entry:
    """Read stored bytes as an entry and check that the body is the one it names.

    Unknown fields of a later version stay in ``text`` and under the digest. Raises Invalid.
    """
    envelope = read_envelope(text)
    check_body(envelope, body)
    return Entry(envelope, text, body, sha256(b"\0" + text).hexdigest())


def check_body(envelope: Envelope, body: bytes) -> None:
    """Refuse a body that is not the one that the envelope names. Raises Invalid."""
    wanted = envelope.body
    if len(body) != wanted.size or sha256(body).hexdigest() != wanted.sha256:
        raise Invalid("the body is not the one that the envelope names")


def read_envelope(text: bytes) -> Envelope:
    """Read stored bytes as an envelope alone, without its body. Raises Invalid."""
    try:
        return _decode(text)
    except (msgspec.MsgspecError, RecursionError) as error:
        return _read_later(text, str(error))


def _read_later(text: bytes, fault: str) -> Envelope:
    try:
        fields = _decode_fields(text)
    except (msgspec.MsgspecError, RecursionError):
        fields = {}
    version = fields.get("v")
    if type(version) is not int or version <= VERSION:
        raise Invalid(f"not an envelope of format {VERSION}: {fault}")
    try:
        return msgspec.convert(_known(fields, Envelope), Envelope)
    except (msgspec.ValidationError, RecursionError) as error:
        raise Invalid(f"not an envelope of format {version}: {error}") from None


def _known(fields: dict[str, Any], kind: Any) -> dict[str, Any]:
    """The fields that version 1 has; nested objects likewise."""
    nested = {"body": Body, "outcome": Outcome, "predecessor": Predecessor}
    known: dict[str, Any] = {}
    for name in kind.__struct_fields__:
        if name not in fields:
            continue  # and the conversion names what is missing
        value = fields[name]
        if name in nested and isinstance(value, dict):
            value = _known(value, nested[name])
        elif name == "releases" and isinstance(value, list):
            value = [_known(item, Release) if isinstance(item, dict) else item for item in value]
        known[name] = value
    return known


def admit(text: bytes, body: bytes) -> Entry:
    """Read foreign bytes: version 1, RFC 8785 form, every field rule. Raises Invalid."""
    entry = read(text, body)
    check(entry.envelope)
    if _encode(entry.envelope) != text:
        raise Invalid("the envelope is not in RFC 8785 form")
    return entry


# Field rules.

_HEX32 = re.compile(r"[0-9a-f]{32}\Z")
_HEX64 = re.compile(r"[0-9a-f]{64}\Z")
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z\Z", re.ASCII)
_RFC3339 = re.compile(
    r"(\d{4}-\d\d-\d\d)[Tt ](\d\d:\d\d:\d\d)(?:\.(\d+))?([Zz]|[+-]\d\d:\d\d)\Z", re.ASCII
)
_TYPE = re.compile(r"[a-z][a-z0-9_-]{0,63}\Z")
_TENANT = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}\Z")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_MICROSECONDS = 6


def _size(field: str, value: str) -> int:
    """Length in bytes of UTF-8. Raises Invalid for a lone surrogate, which has none."""
    try:
        return len(value.encode())
    except UnicodeEncodeError:
        raise Invalid(f"{field} holds half of a surrogate pair", field=field) from None


def check_name(field: str, value: str, limit: int) -> None:
    """Refuse an empty name, one over ``limit`` bytes of UTF-8, or one with control characters."""
    if value.isascii() and value.isprintable() and 0 < len(value) <= limit:
        return  # as nearly all are: told without the pattern and without encoding it
    if not value:
        raise Invalid(f"{field} is empty", field=field)
    if len(value) > limit or _size(field, value) > limit:
        raise Invalid(f"{field} is longer than {limit} bytes", field=field)
    if _CONTROL.search(value):
        raise Invalid(f"{field} holds a control character", field=field)


def check_entity(entity: str) -> str:
    """Refuse anything but `type/id`; return the type."""
    kind, slash, identity = entity.partition("/")
    if not slash or not _TYPE.match(kind):
        raise Invalid(
            "entity must be `type/id` with a type of a-z, 0-9, _ and -, such as document/inv-2041",
            field="entity",
        )
    check_name("entity id", identity, MAX_ENTITY_ID)
    return kind


def check_type(kind: str) -> str:
    """Refuse what is not an entity type."""
    if not _TYPE.match(kind):
        raise Invalid("an entity type is 1 to 64 of a-z, 0-9, _, -, a letter first", field="type")
    return kind


def check_tenant(tenant: str) -> str:
    """Refuse what is not a tenant's name."""
    if not _TENANT.match(tenant):
        raise Invalid("a tenant's name is 1 to 64 of a-z, 0-9, _ and -", field="tenant")
    return tenant


def check_string(field: str, value: str | None) -> None:
    """Refuse a free string over 1,024 bytes."""
    if value is not None and (len(value) > MAX_STRING or _size(field, value) > MAX_STRING):
        raise Invalid(f"{field} is longer than {MAX_STRING} bytes", field=field)


def check_text(field: str, value: str | None) -> None:
    """Refuse a free string that some database cannot keep: too long, or with U+0000 in it."""
    check_string(field, value)
    if value is not None and "\0" in value:
        raise Invalid(
            f"{field} holds the character U+0000, which not every database keeps", field=field
        )


def check_time(field: str, value: str) -> None:
    """Refuse anything but RFC 3339 in UTC with six digits and `Z`."""
    if not _TIME.match(value):
        raise Invalid(
            f"{field} must be RFC 3339 in UTC with microseconds and Z, such as "
            "2026-01-31T08:15:00.000000Z",
            field=field,
        )
    try:
        datetime.fromisoformat(value)
    except ValueError as error:
        raise Invalid(f"{field}: {error}", field=field) from None


def time_of(moment: datetime) -> str:
    """A moment in the format's form: UTC, six digits, `Z`."""
    # isoformat, for strftime writes years below 1000 with fewer than four digits.
    return moment.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"


def parse_time(field: str, value: str) -> str:
    """Bring an RFC 3339 time with any offset to the format's form; finer digits are refused."""
    match = _RFC3339.match(value)
    if match is None:
        raise Invalid(f"{field} must be an RFC 3339 time with an offset or Z", field=field)
    date, clock, fraction, offset = match.groups()
    if fraction and len(fraction) > _MICROSECONDS:
        raise Invalid(f"{field} is finer than microseconds", field=field)
    text = f"{date}T{clock}.{(fraction or '').ljust(_MICROSECONDS, '0')}{offset.upper()}"
    try:
        return time_of(datetime.fromisoformat(text))
    except (ValueError, OverflowError) as error:
        raise Invalid(f"{field}: {error}", field=field) from None


def check(envelope: Envelope) -> None:
    """Refuse an envelope that breaks a field rule of the format. Raises Invalid with the field."""
    if envelope.v != VERSION:
        raise Invalid(f"v must be {VERSION}", field="v")
    check_tenant(envelope.tenant)
    check_entity(envelope.entity)
    check_name("operation", envelope.operation, MAX_OPERATION)
    check_name("action", envelope.action, MAX_ACTION)
    check_name("lifecycle", envelope.lifecycle, MAX_ACTION)
    check_name("outcome.state", envelope.outcome.state, MAX_ACTION)
    check_name("body.type", envelope.body.type, MAX_ACTION)
    for field in ("version", "actor", "principal"):
        check_string(field, getattr(envelope, field))
    check_time("at", envelope.at)
    check_time("recorded", envelope.recorded)
    _check_hex("history", envelope.history, _HEX32)
    _check_hex("body.sha256", envelope.body.sha256, _HEX64)
    if envelope.outcome.data is not None:
        _check_hex("outcome.data", envelope.outcome.data, _HEX64)
    _check_integer("generation", envelope.generation, 1)
    _check_integer("revision", envelope.revision, 1)
    _check_integer("body.size", envelope.body.size, 0)
    if envelope.sequence is not None:
        _check_integer("sequence", envelope.sequence, 1)
    _check_predecessor(envelope)
    if len(envelope.releases) > MAX_RELEASES:
        raise Invalid(f"a decision permits at most {MAX_RELEASES} releases", field="releases")
    if envelope.releases and envelope.version is None:
        raise Invalid("a decision that releases something names its version", field="version")
    for release in envelope.releases:
        _check_release(release)


def _check_hex(field: str, value: str, pattern: re.Pattern[str]) -> None:
    if not pattern.match(value):
        raise Invalid(f"{field} is not lowercase hex of the right length", field=field)


def _check_integer(field: str, value: int, least: int) -> None:
    if not least <= value <= MAX_INTEGER:
        raise Invalid(f"{field} must be an integer from {least} to 2^53-1", field=field)


def _check_predecessor(envelope: Envelope) -> None:
    before = envelope.predecessor
    if (before is None) != (envelope.revision == 1):
        raise Invalid("revision 1, and only it, has no predecessor", field="predecessor")
    if before is None:
        return
    _check_hex("predecessor.digest", before.digest, _HEX64)
    _check_hex("predecessor.history", before.history, _HEX32)
    if before.revision != envelope.revision - 1:
        raise Invalid("the predecessor's revision must be one less", field="predecessor")


def _check_release(release: Release) -> None:
    check_name("releases.id", release.id, MAX_OPERATION)
    check_name("releases.lane", release.lane, MAX_ACTION)
    for field in ("corrects", "receiver", "recipient", "version"):
        check_string(f"releases.{field}", getattr(release, field))
    if release.digest is not None:
        _check_hex("releases.digest", release.digest, _HEX64)


def as_object(value: Struct) -> Any:
    """A struct as plain JSON-ready objects."""
    return msgspec.to_builtins(value)
