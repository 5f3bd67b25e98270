"""How an append travels: as one message, or in parts that count together or not at all.

Every message names the SHA-256 of the one before it, so a stream is one chain from its first
message. An append that fits into no message is cut into parts that follow each other; the last one
says so. Whatever does not continue the chain, or leaves parts without their last, is *void*: it
stays where it is and means nothing, to every reader alike.

Format 1 is a msgpack array: format, link, part, last, data. ``data``, joined over the parts, is the
append.
"""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import sha256

import msgspec
from msgspec import Struct

from journal.control import Abandoned, Authority
from journal.entry import Entry, read_envelope
from journal.errors import EngineError, Invalid, NewerFormat
from journal.log import Append, EntityChain, FlawRow, Rival

FORMAT = 1
START = bytes(32)
"""What the first message of a stream names as the one before it."""
OVERHEAD = 1024
"""Bytes of a message beside its data, generously: headers and the array around it."""


class Message(Struct, frozen=True, array_like=True):
    """One message of the stream."""

    format: int
    link: bytes
    part: int
    last: bool
    data: bytes


class _Rival(Struct, frozen=True, array_like=True):
    text: bytes
    body: bytes
    digest: bytes
    stored: str
    seen: str


class _Entry(Struct, frozen=True, array_like=True):
    stream: str
    text: bytes
    body: bytes
    digest: bytes


class _Append(Struct, frozen=True, array_like=True):
    """An append, and the position behind which its entries stand."""

    position: int
    entries: list[_Entry]
    becomes: Authority | None
    rivals: list[_Rival]
    chains: list[EntityChain]
    settled: list[str]
    flaws: list[FlawRow]
    drops: list[Abandoned]
    anew: bool


class Void(Exception):
    """The message means nothing; the reason."""


_encode = msgspec.msgpack.Encoder().encode
_decode_message = msgspec.msgpack.Decoder(Message).decode
_decode_append = msgspec.msgpack.Decoder(_Append).decode


def link_of(payload: bytes) -> bytes:
    """What the next message names: SHA-256 of these bytes."""
    return sha256(payload).digest()


def encode(append: Append, position: int) -> bytes:
    """An append as data. Raises EngineError for one that nobody could read again."""
    data = _encode(
        _Append(
            position,
            [
                _Entry(stream, entry.text, entry.body, bytes.fromhex(entry.digest))
                for stream, entry in append.entries
            ],
            append.becomes,
            [
                _Rival(
                    rival.entry.text,
                    rival.entry.body,
                    bytes.fromhex(rival.entry.digest),
                    rival.stored,
                    rival.seen,
                )
                for rival in append.rivals
            ],
            list(append.chains),
            list(append.settled),
            list(append.flaws),
            list(append.drops),
            append.anew,
        )
    )
    try:
        _decode_append(data)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise EngineError(f"an append that cannot be stored: {error}") from None
    return data


def decode(data: bytes) -> tuple[int, Append]:
    """The position that an append expects, and the append. Raises Void."""
    try:
        told = _decode_append(data)
        return told.position, Append(
            entries=[(item.stream, _entry(item)) for item in told.entries],
            becomes=told.becomes,
            rivals=[Rival(_entry(item), item.stored, item.seen) for item in told.rivals],
            chains=told.chains,
            settled=told.settled,
            flaws=told.flaws,
            drops=told.drops,
            anew=told.anew,
        )
    except (msgspec.MsgspecError, RecursionError, Invalid) as error:
        raise Void(f"it holds no append: {error}") from None


def _entry(item: _Entry | _Rival) -> Entry:
    return Entry(read_envelope(item.text), item.text, item.body, item.digest.hex())


def cut(data: bytes, link: bytes, size: int) -> Iterator[bytes]:
    """The messages of an append's data, none larger than ``size``; ``link`` is the first's."""
    room = size - OVERHEAD
    starts = range(0, max(len(data), 1), room)
    for part, start in enumerate(starts):
        piece = data[start : start + room]
        payload = _encode(Message(FORMAT, link, part, part == len(starts) - 1, piece))
        link = link_of(payload)
        yield payload


def read(payload: bytes, link: bytes) -> Message:
    """A message that continues the chain at ``link``.

    Raises Void, or NewerFormat when newer code has written it.
    """
    try:
        message = _decode_message(payload)
    except (msgspec.MsgspecError, RecursionError) as error:
        later = _later(payload)
        if later is None:
            raise Void(f"it is no message of a journal: {error}") from None
        message = later
    if message.link != link:
        raise Void("it does not follow the message before it")
    if message.format > FORMAT:
        raise NewerFormat(
            f"the stream holds a message of format {message.format}, this is for {FORMAT}: "
            "install the newer version of unrewind"
        )
    return message


def _later(payload: bytes) -> Message | None:
    """A message of a later format, as far as it has to be as this one: its first two fields."""
    try:
        number, link, *_ = msgspec.msgpack.decode(payload, type=list[msgspec.Raw])
        later = Message(
            msgspec.msgpack.decode(number, type=int),
            msgspec.msgpack.decode(link, type=bytes),
            0,
            last=True,
            data=b"",
        )
    except (msgspec.MsgspecError, RecursionError, ValueError):
        return None
    return later if later.format > FORMAT else None


def continues(payload: bytes, link: bytes) -> bool:
    """Whether a message names ``link`` as the one before it."""
    try:
        read(payload, link)
    except Void:
        return False
    return True
