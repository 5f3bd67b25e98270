"""Callbacks are taken as their receiver signed them: these bytes, under this ID, just now."""

import json
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from standardwebhooks import Webhook

from api.problems import kind_of
from api.signing import (
    MAX_SIGNATURES,
    TOLERANCE,
    CallbackRefused,
    check_secret,
    sign,
    verify_callback,
)
from journal.errors import Invalid, SettingsInvalid

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
OTHER = "whsec_AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwd"
NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
BODY = b'{"release": "rel_1",  "state":"done"}'
NAMES = ("webhook-id", "webhook-timestamp", "webhook-signature")


def signed(content=BODY, at=NOW, secret=SECRET, identity="msg_1"):
    return sign(secret, identity, at, content)


def refused(headers, content=BODY, now=NOW, secret=SECRET):
    with pytest.raises(CallbackRefused) as caught:
        verify_callback(secret, headers, content, now=now)
    return caught.value.detail


def test_l15_a_callback_signed_over_its_raw_bytes_is_taken():
    assert verify_callback(SECRET, signed(), BODY, now=NOW) == "msg_1"
    # By default the clock is this machine's.
    assert verify_callback(SECRET, signed(at=datetime.now(UTC)), BODY) == "msg_1"


def test_l15_names_of_headers_are_taken_in_any_case():
    headers = {name.title(): value for name, value in signed().items()}
    assert verify_callback(SECRET, {**headers, "Other": "x"}, BODY, now=NOW) == "msg_1"


def test_l15_a_signature_that_other_implementations_publish_is_taken():
    headers = {
        "webhook-id": "msg_p5jXN8AQM9LWM0D4loKWxJek",
        "webhook-timestamp": "1614265330",
        "webhook-signature": "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
    }
    at = datetime.fromtimestamp(1614265330, UTC)
    assert sign(SECRET, headers["webhook-id"], at, b'{"test": 2432232314}') == headers
    verify_callback(SECRET, headers, b'{"test": 2432232314}', now=at)


def test_l15_another_implementation_takes_what_we_sign():
    Webhook(SECRET).verify(BODY, signed(at=datetime.now(UTC)), json_parse=False)


def test_the_time_that_is_signed_is_the_moment_whatever_its_zone():
    there = NOW.astimezone(timezone(timedelta(hours=5, minutes=30)))
    assert signed(at=there) == signed()
    assert signed(at=NOW + timedelta(milliseconds=999)) == signed()
    with pytest.raises(Invalid, match="zone"):
        signed(at=NOW.replace(tzinfo=None))


@given(st.data())
def test_l15_any_altered_byte_of_the_body_is_refused(data):
    content = data.draw(st.text(min_size=1)).encode()
    place = data.draw(st.integers(0, len(content) - 1))
    other = data.draw(st.integers(0, 255).filter(lambda byte: byte != content[place]))
    altered = content[:place] + bytes([other]) + content[place + 1 :]
    refused(signed(content), altered)


@given(st.sampled_from(NAMES), st.data())
def test_l15_any_altered_character_of_a_header_is_refused(name, data):
    headers = signed()
    value = headers[name]
    place = data.draw(st.integers(0, len(value) - 1))
    other = data.draw(st.characters().filter(lambda char: char != value[place]))
    refused({**headers, name: value[:place] + other + value[place + 1 :]})


@given(st.sampled_from(NAMES), st.text(max_size=3), st.text(max_size=3))
def test_l15_nothing_may_be_added_to_a_header(name, before, after):
    headers = signed()
    assume(before or after)
    # A further signature is allowed; these are none that count.
    assume(name != "webhook-signature" or " " not in before + after)
    refused({**headers, name: before + headers[name] + after})


@given(
    st.dictionaries(
        st.text(max_size=4),
        st.one_of(st.integers(-(2**53), 2**53), st.text(max_size=4), st.booleans()),
        min_size=1,
        max_size=4,
    )
)
def test_l15_reencoded_json_is_refused(fields):
    content = json.dumps(fields, separators=(" ,", ":  ")).encode()
    headers = signed(content)
    verify_callback(SECRET, headers, content, now=NOW)
    assert "no webhook-signature" in refused(headers, json.dumps(json.loads(content)).encode())


@pytest.mark.parametrize("direction", [-1, 1])
def test_l15_timestamps_are_checked_in_both_directions(direction):
    edge = direction * timedelta(seconds=TOLERANCE)
    headers = signed(at=NOW + edge)
    assert verify_callback(SECRET, headers, BODY, now=NOW) == "msg_1"
    refused(headers, now=NOW - direction * timedelta(milliseconds=1))
    reason = refused(signed(at=NOW + edge + direction * timedelta(seconds=1)))
    assert ("ahead of" if direction > 0 else "behind") in reason


@pytest.mark.parametrize(
    "stamp",
    [
        "nan", "inf", "-inf", "1e9", "0x10", "", " ", "-1", "+1772366400", "1772366400.0",
        "1_772_366_400", "01772366400", " 1772366400", "1772366400\n", "١٧٧٢٣٦٦٤٠٠", "9" * 5000,
    ],
)  # fmt: skip
def test_l15_only_whole_seconds_in_their_one_spelling_are_a_timestamp(stamp):
    refused({**signed(), "webhook-timestamp": stamp})


@pytest.mark.parametrize("name", NAMES)
def test_l15_unsigned_callbacks_are_refused(name):
    headers = signed()
    assert f"{name} is missing" in refused({key: headers[key] for key in NAMES if key != name})
    assert f"{name} is missing" in refused({**headers, name: ""})
    assert f"{name} was sent twice" in refused({**headers, name.upper(): headers[name]})


def test_l15_another_receivers_signature_is_refused():
    refused(signed(secret=OTHER))


@pytest.mark.parametrize(
    "extra",
    ["v1,AAAA", "v1", "v1,a,b", "v2,%s", "v1a,x", ",", "", "v1,é", "v1,\udcff"],
)
def test_l15_one_of_several_signatures_is_enough(extra):
    headers = signed()
    right = headers["webhook-signature"]
    for both in (f"{extra} {right}", f"{right} {extra}", f"{extra} {right} {extra}"):
        assert verify_callback(SECRET, {**headers, "webhook-signature": both}, BODY, now=NOW)
    refused({**headers, "webhook-signature": f"{extra} {extra}"})


def test_l15_a_right_signature_under_another_version_is_none():
    headers = signed()
    other = headers["webhook-signature"].replace("v1,", "v1a,")
    refused({**headers, "webhook-signature": other})
    refused({**headers, "webhook-signature": other.removeprefix("v1a,")})


def test_l15_headers_are_bounded():
    headers = signed()
    many = " ".join([headers["webhook-signature"]] * 100)
    assert str(MAX_SIGNATURES) in refused({**headers, "webhook-signature": many})
    refused({**headers, "webhook-id": "m" * 129})


def test_l15_a_signature_fits_one_split_into_id_time_and_body_only():
    """`a` + `1.2.{}` and `a.1` + `2.{}` are the same bytes; so no ID has a full stop."""
    moved = f"{int(NOW.timestamp())}.".encode() + BODY
    headers = sign(SECRET, "msg", NOW, moved)
    verify_callback(SECRET, headers, moved, now=NOW)
    refused({**headers, "webhook-id": f"msg.{headers['webhook-timestamp']}"})
    with pytest.raises(Invalid):
        sign(SECRET, "a.1", NOW, BODY)


def test_l15_bytes_that_are_not_utf8_are_refused():
    assert "UTF-8" in refused(signed(), b"\xff" + BODY)
    with pytest.raises(Invalid, match="UTF-8"):
        signed(b"\xff")


@given(st.dictionaries(st.sampled_from([*NAMES, "Webhook-Id"]), st.text(max_size=60)), st.binary())
def test_l15_whatever_is_sent_is_refused_in_order(headers, content):
    refused(headers, content)


def test_a_refused_callback_is_answered_as_unauthenticated():
    with pytest.raises(CallbackRefused) as caught:
        verify_callback(SECRET, {}, BODY)
    assert kind_of(caught.value).status == 401
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize("prefix", ["", "whsec_"])
def test_a_secret_is_base64_of_24_bytes_or_more(prefix):
    check_secret("HOOK", f"{prefix}MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
    check_secret("HOOK", f"{prefix}AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGA")
    check_secret("HOOK", f"{prefix}AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGA==")


@pytest.mark.parametrize(
    "value",
    [
        "", "whsec_", "whsec_====", "plain words", "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2La",
        "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaS!", "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLa_-",
        "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw\n", "whsk_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
        "MfKQ9r8=GKYqrTwjUPD8ILPZIo2LaLaSwAAAAAAA", "é" * 40, "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSwA",
    ],
)  # fmt: skip
def test_a_malformed_secret_is_named_but_never_shown(value):
    with pytest.raises(SettingsInvalid) as caught:
        check_secret("MAIL_SECRET", value)
    assert caught.value.detail.startswith("MAIL_SECRET: ")
    assert not value.strip() or value.strip("whsec_=") == "" or value not in str(caught.value)
    assert caught.value.__cause__ is None


def test_a_signature_needs_a_secret_that_can_be_read():
    # The library would drop what is not base64, and sign with another key.
    with pytest.raises(SettingsInvalid) as caught:
        sign("not base64!", "msg_1", NOW, BODY)
    assert "not base64!" not in str(caught.value)
