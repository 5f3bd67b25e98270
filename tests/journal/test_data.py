"""Entity data: the merge of RFC 7396, and bodies that are kept or refused but never altered."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from journal import data
from journal.entry import JSON_TYPE
from journal.errors import Invalid
from tests.support.whole import merged

RFC_7396_EXAMPLES = [
    ({"a": "b"}, {"a": "c"}, {"a": "c"}),
    ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
    ({"a": "b"}, {"a": None}, {}),
    ({"a": "b", "b": "c"}, {"a": None}, {"b": "c"}),
    ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
    ({"a": "c"}, {"a": ["b"]}, {"a": ["b"]}),
    ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
    ({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}),
    ({"a": "b"}, ["c"], {"a": "b"}),  # an array replaces in RFC 7396; here it is kept, not merged
    ({"a": "foo"}, None, {"a": "foo"}),  # likewise
    ({"a": "foo"}, "bar", {"a": "foo"}),  # likewise
    ({"e": None}, {"a": 1}, {"e": None, "a": 1}),
    ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
]
"""RFC 7396, appendix A, without its cases whose target is an array: data is always an object."""

SECTION_3 = (
    {
        "title": "Goodbye!",
        "author": {"givenName": "John", "familyName": "Doe"},
        "tags": ["example", "sample"],
        "content": "This will be unchanged",
    },
    {
        "title": "Hello!",
        "phoneNumber": "+01-123-456-7890",
        "author": {"familyName": None},
        "tags": ["example"],
    },
    {
        "title": "Hello!",
        "author": {"givenName": "John"},
        "tags": ["example"],
        "content": "This will be unchanged",
        "phoneNumber": "+01-123-456-7890",
    },
)


def dump(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode()


def after(before: Any, patch: bytes) -> Any:
    return json.loads(data.after(dump(before), patch, JSON_TYPE))


@pytest.mark.parametrize(("before", "patch", "wanted"), [*RFC_7396_EXAMPLES, SECTION_3])
def test_the_examples_of_rfc_7396(before: Any, patch: Any, wanted: Any) -> None:
    assert after(before, dump(patch)) == wanted


TEXT = st.text(st.characters(codec="utf-8"), max_size=6)
SCALARS = st.none() | st.booleans() | st.integers(-(2**53) + 1, 2**53 - 1) | TEXT
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=12,
)
OBJECTS = st.dictionaries(TEXT, VALUES, max_size=4)


@given(OBJECTS, OBJECTS)
def test_any_merge_is_the_one_of_the_rfcs_pseudocode(before: Any, patch: Any) -> None:
    assert after(before, dump(patch)) == merged(before, patch)


@given(st.lists(OBJECTS, max_size=4), OBJECTS)
def test_p11_the_same_bodies_give_the_same_bytes_and_a_last_one_repeated_changes_nothing(
    patches: list[Any], last: Any
) -> None:
    def replay() -> bytes:
        stored = data.EMPTY
        for patch in [*patches, last]:
            stored = data.after(stored, dump(patch), JSON_TYPE)
        return stored

    stored = replay()
    assert replay() == stored
    assert json.loads(data.after(stored, dump(last), JSON_TYPE)) == json.loads(stored)


@given(OBJECTS, OBJECTS)
def test_a_merge_leaves_its_arguments_as_they_were(before: Any, patch: Any) -> None:
    copies = json.loads(dump(before)), json.loads(dump(patch))
    data.merge(before, patch)
    assert (before, patch) == copies


@pytest.mark.parametrize(
    "body",
    [
        b'{"a":1,"a":2}',
        b'{"a":1,"a":1}',
        b'{"a":1,"\\u0061":2}',
        b'{"x":{"a":1,"a":2}}',
        b'{"x":[1,{"a":{},"a":{}}]}',
        b'[{"a":1,"a":2}]',
        b'{"a":NaN}',
        b'{"a":Infinity}',
        b'{"a":-Infinity}',
        b'{"a":9007199254740992}',
        b'{"a":-9007199254740992}',
        b'{"x":[[{"a":18446744073709551616}]]}',
        b"9007199254740992",
        b'{"a":1e999}',
        b'{"a":"\\ud83d"}',
        b'{"a":"\xff"}',
        b'\xef\xbb\xbf{"a":1}',
        b'{"a":01}',
        b'{"a":1,}',
        b"{'a':1}",
        b'{"a":1}{"b":2}',
        b"{",
        b"nul",
        '{"a":1}'.encode("utf-16"),
        b'{"a":' * 66 + b"1" + b"}" * 66,
        b"[" * 200_000 + b"]" * 200_000,
    ],
)
def test_h9_a_body_that_is_not_i_json_is_refused(body: bytes) -> None:
    with pytest.raises(Invalid) as refused:
        data.after(data.EMPTY, body, JSON_TYPE)
    assert refused.value.members["field"] == "body"


@pytest.mark.parametrize("number", [2**53 - 1, -(2**53) + 1, 0, -1])
def test_h9_the_largest_integers_pass_unchanged(number: int) -> None:
    assert after({}, b'{"a":[%d]}' % number) == {"a": [number]}


@pytest.mark.parametrize("body", [b'{ "a" : 1.0 }', b'{"a":-0.0,"b":1e16,"c":1.5e-9}', b'{"a":-0}'])
def test_h9_numbers_mean_in_the_data_what_they_mean_in_the_body(body: bytes) -> None:
    assert after({}, body) == json.loads(body)


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (b"", JSON_TYPE),
        (b"{}", JSON_TYPE),
        (b"[1]", JSON_TYPE),
        (b"null", JSON_TYPE),
        (b'"text"', JSON_TYPE),
        (b'{"a":1,"a":2}', "application/octet-stream"),
        (b"\xff\x00", "image/png"),
    ],
)
def test_other_bodies_are_kept_and_not_merged(body: bytes, kind: str) -> None:
    before = b'{ "odd" :  1 }'
    assert data.after(before, body, kind) is before


def test_data_is_hashed_as_it_is_stored() -> None:
    assert data.hash_of(b'{"a":1}') != data.hash_of(b'{"a": 1}')
    assert len(data.hash_of(data.EMPTY)) == 64


def test_names_beyond_the_basic_plane_and_with_quotes_survive() -> None:
    patch = {"\U00010000": 1, "\ue000": 2, 'a"\\\n': {"\u2028": None}, "\x7f": "\x00"}
    assert after({}, dump(patch)) == merged({}, patch)
