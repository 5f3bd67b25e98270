"""Messages of a stream: an append with one meaning, or void to every reader alike."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from journal.control import Authority, Stage
from journal.errors import NewerFormat
from journal.history import Flaw, Head
from journal.log import Append, EntityChain, FlawRow, Rival
from journal.nats import message
from tests.fuzz.mutating import FUZZED, VALUES, spoiled, taken
from tests.soak.processes import LONG
from tests.support.sealing import HISTORY, MOMENT, Caller, sealed

if LONG:
    pytestmark = pytest.mark.soak

_CHAIN = Caller().chain("contract/1", 2)
APPEND = Append(
    entries=[("caller/contract", entry) for entry in _CHAIN],
    becomes=Authority(HISTORY, 1, Stage.OPEN, 1, "0" * 64),
    rivals=[Rival(sealed(operation="rival"), _CHAIN[0].digest, MOMENT)],
    chains=[EntityChain("contract/1", Head(2, HISTORY, _CHAIN[1].digest), "signed", 2)],
    settled=["contract/1"],
    flaws=[FlawRow("contract/1", Flaw.FORK, 1, 1, ("ab" * 32,), 0, 1, MOMENT, "a test")],
)
DATA = message.encode(APPEND, 7)
LINK = b"\x07" * 32


def meaning(payload: bytes, link: bytes) -> message.Message | None:
    """What a message is: itself, or nothing to this code."""
    return taken(message.read, payload, link, by=(NewerFormat, message.Void))


def test_a_whole_one_means_itself() -> None:
    payloads = [*message.cut(DATA, LINK, message.OVERHEAD + 512)]
    assert len(payloads) > 1
    link, data = LINK, b""
    for payload in payloads:
        data += message.read(payload, link).data
        link = message.link_of(payload)
    assert message.decode(data)[0] == 7
    assert message.encode(message.decode(data)[1], 7) == DATA


@FUZZED
@given(st.data())
def test_a_spoiled_message_is_void_or_of_newer_code(data: Any) -> None:
    (payload,) = message.cut(DATA, LINK, 1 << 20)
    other = data.draw(spoiled(st.just(payload)))
    found = meaning(other, LINK)
    if found is not None:
        assert msgspec.msgpack.decode(msgspec.msgpack.encode(found), type=message.Message) == found
    assert message.continues(payload, LINK)
    assert meaning(payload, b"\x08" * 32) is None


@FUZZED
@given(st.data())
def test_spoiled_data_is_void_or_an_append(data: Any) -> None:
    """Whoever writes into the stream may say anything; a bit that fell over is in a chain."""
    other = data.draw(
        spoiled(st.just(DATA))
        | VALUES.filter(_fits).map(msgspec.msgpack.encode)
        | st.binary(max_size=64)
        | st.sampled_from(
            [b"\x91" * 100_000, b"\x81\xa1a" * 100_000, b"\xdd\xff\xff\xff\xff", b"\xc1"]
        )
    )
    found = taken(message.decode, other, by=message.Void)
    if found is not None:
        position, append = found
        assert message.decode(message.encode(append, position)) == found


def _fits(value: Any) -> bool:
    try:
        msgspec.msgpack.encode(value)
    except OverflowError:
        return False
    return True


@FUZZED
@given(st.binary(max_size=200) | st.sampled_from([b"\x91" * 100_000, b"\x95\x02\xc4\xff"]))
def test_any_bytes_are_void(payload: bytes) -> None:
    assert meaning(payload, LINK) is None
