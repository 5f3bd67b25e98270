"""Valid values and what becomes of them: bytes changed, structures changed, depths and sizes."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TypeVar

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from tests.soak.processes import LONG

T = TypeVar("T")

EXAMPLES = 5000 if LONG else 60
FUZZED = settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize=not LONG,
    suppress_health_check=list(HealthCheck),
    print_blob=True,
)
DEPTH = 100_000
"""Of nesting, far beyond what any parser here may follow."""

ODD = st.sampled_from(
    [
        *(b"\x00", b"\xff", b"\xc3\x28", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xef\xbb\xbf"),
        *(b'"', b"\\", b"\\u0000", b"\\ud800", b"{", b"}", b"[", b"]", b",", b":", b"-", b"."),
        *(b"1e999", b"NaN", b"-0", b"9007199254740993", b"1" * 5000, b"null", b"true", b" "),
        *(b"\r\n", b"\t", b"=", b"%", b"%00", b"/", b"..", b"_", b"$", b"'", b";", b"\x7f"),
    ]
)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=12)
    | st.sampled_from(["", "0", "main", "a/b", "x" * 2000, "\x00", "\ud7ff", "😀"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=6,
)


@st.composite
def spoiled(draw: st.DrawFn, whole: st.SearchStrategy[bytes]) -> bytes:
    """Some bytes of a valid value turned over, put in, left out, doubled, exchanged or cut off."""
    content = bytearray(draw(whole))
    for _ in range(draw(st.integers(1, 4))):
        size = len(content)
        at = draw(st.integers(0, size))
        end = min(size, at + draw(st.integers(1, 16)))
        match draw(st.sampled_from(["flip", "put", "odd", "leave", "double", "move", "cut"])):
            case "flip" if at < size:
                content[at] ^= 1 << draw(st.integers(0, 7))
            case "put":
                content[at:at] = draw(st.binary(min_size=1, max_size=4))
            case "odd":
                content[at:at] = draw(ODD)
            case "leave":
                del content[at:end]
            case "double":
                content[at:at] = content[at:end]
            case "move":
                taken = bytes(content[at:end])
                del content[at:end]
                to = draw(st.integers(0, len(content)))
                content[to:to] = taken
            case "cut":
                del content[at:]
    return bytes(content)


@st.composite
def restructured(draw: st.DrawFn, whole: st.SearchStrategy[Any]) -> Any:
    """A JSON value with another value, a key too many or a key too few somewhere in it."""
    value = json.loads(json.dumps(draw(whole)))
    for _ in range(draw(st.integers(1, 3))):
        value = _changed(draw, value)
    return value


def _changed(draw: st.DrawFn, value: Any) -> Any:
    if isinstance(value, dict) and value and draw(st.integers(0, 5)):
        name = draw(st.sampled_from(sorted(value)))
        match draw(st.sampled_from(["within", "without", "anew", "more", "renamed"])):
            case "within":
                value[name] = _changed(draw, value[name])
            case "without":
                del value[name]
            case "anew":
                value[name] = draw(VALUES)
            case "more":
                value[draw(st.text(max_size=8))] = draw(VALUES)
            case "renamed":
                value[name + draw(st.sampled_from(["s", " ", "\x00", "́"]))] = value.pop(name)
        return value
    if isinstance(value, list) and value and draw(st.booleans()):
        at = draw(st.integers(0, len(value) - 1))
        if draw(st.booleans()):
            value.append(value[at])
        else:
            value[at] = _changed(draw, value[at])
        return value
    return draw(VALUES)


def deep(shape: bytes = b"[") -> bytes:
    """JSON that is nested deeper than anything may follow."""
    return shape * DEPTH


def taken(
    function: Callable[..., T],
    *given: Any,
    by: type[Exception] | tuple[type[Exception], ...],
    hides: str | None = None,
) -> T | None:
    """What a function makes of its input; None where it refuses, with one line that says why.

    Any other exception is a failure of the test, and so is one that shows what it ``hides``.
    """
    try:
        return function(*given)
    except by as error:
        words = str(error)
        fault = None
        if not words.strip():
            fault = "refused without a word"
        elif "\n" in words:
            fault = "refused with more than one line"
        elif hides is not None and hides in words:
            fault = "a secret in the words"
        if fault is not None:
            raise AssertionError(f"{fault}: {words!r}") from error
        return None


def passes(
    check: Callable[..., None],
    *given: Any,
    by: type[Exception] | tuple[type[Exception], ...],
    hides: str | None = None,
) -> bool:
    """Whether a check lets its input pass; it refuses as ``taken`` has it."""

    def passed() -> bool:
        check(*given)
        return True

    return taken(passed, by=by, hides=hides) is not None
