"""Lifecycles: what may follow what, and declarations that contradict themselves."""

import msgspec
import pytest

from journal.errors import Invalid, SettingsInvalid, TransitionRefused
from journal.lifecycle import (
    DOCUMENT,
    Action,
    Kind,
    Lifecycle,
    Owner,
    check_lifecycle,
    lifecycle_of,
    step,
)

LIFECYCLES = {"document": DOCUMENT, "case": Lifecycle(kind=Kind.FREE)}

ALLOWED = {
    (None, "submit"): "submitted",
    ("submitted", "submit"): "submitted",
    ("submitted", "approve"): "approved",
    ("submitted", "cancel"): "cancelled",
    ("approved", "cancel"): "cancelled",
    ("approved", "revoke"): "revoked",
    ("approved", "release"): "committed",
    ("revoked", "submit"): "submitted",
    ("revoked", "approve"): "approved",
    ("revoked", "cancel"): "cancelled",
    ("committed", "release.confirmed"): "released",
}
STATES = (None, "submitted", "approved", "cancelled", "revoked", "committed", "released")


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("action", [*DOCUMENT.actions, "unheard-of"])
def test_a_document_takes_exactly_its_declared_transitions(state: str | None, action: str) -> None:
    wanted = ALLOWED.get((state, action))
    if wanted is not None:
        assert step(DOCUMENT, state, action, "1") == wanted
        return
    with pytest.raises(TransitionRefused) as refused:
        step(DOCUMENT, state, action, "1")
    allowed = sorted(name for at, name in ALLOWED if at == state)
    assert refused.value.members["allowed"] == allowed
    assert refused.value.members["state"] == (state or "draft")


def test_an_action_that_releases_needs_the_version_it_decides_on() -> None:
    with pytest.raises(Invalid) as refused:
        step(DOCUMENT, "approved", "release", None)
    assert refused.value.members == {"field": "version"}


def test_a_free_lifecycle_takes_any_action_and_its_state_is_that_action() -> None:
    free = LIFECYCLES["case"]
    assert step(free, None, "opened", None) == "opened"
    assert step(free, "opened", "anything at all", None) == "anything at all"


def test_an_undeclared_type_is_refused_with_the_lines_that_would_declare_it() -> None:
    with pytest.raises(Invalid) as refused:
        lifecycle_of(LIFECYCLES, "invoice/1")
    assert '[lifecycle.invoice]\nkind = "free"' in refused.value.detail
    assert refused.value.members == {"field": "entity", "entity_type": "invoice"}


def test_callers_cannot_name_control() -> None:
    with pytest.raises(Invalid, match="unrewind alone"):
        lifecycle_of(LIFECYCLES, "control/tenant")


def declared(**changes: object) -> Lifecycle:
    base = Lifecycle(actions={"open": Action(("draft",), "opened")})
    return msgspec.structs.replace(base, **changes)


WRONG = {
    "control": ("control", declared()),
    "a name that is no type": ("Upper", declared()),
    "free with actions": ("case", declared(kind=Kind.FREE)),
    "declared without actions": ("case", declared(actions={})),
    "embedded without a projection": ("case", declared(owner=Owner.EMBEDDED)),
    "a projection on a managed type": ("case", declared(projection="a:b")),
    "a projection on a caller's type": (
        "case",
        declared(owner=Owner.CALLER, projection="a:b"),
    ),
    "an unreachable source": ("case", declared(actions={"x": Action(("nowhere",), "there")})),
    "no source": ("case", declared(actions={"x": Action((), "there")})),
    "an empty version": ("case", declared(version="")),
    "a state without a name": ("case", declared(actions={"x": Action(("draft",), "")})),
    "a state too long for the format": (
        "case",
        declared(actions={"x": Action(("draft",), "s" * 129)}),
    ),
    "a state with a control character": (
        "case",
        declared(actions={"x": Action(("draft",), "a\nb")}),
    ),
    "an action without a name": ("case", declared(actions={"": Action(("draft",), "there")})),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_declaration_that_cannot_hold_is_refused_by_name(what: str) -> None:
    name, lifecycle = WRONG[what]
    with pytest.raises(SettingsInvalid) as refused:
        check_lifecycle(name, lifecycle)
    assert f"lifecycle.{name}" in refused.value.detail


def test_the_shipped_lifecycle_and_each_kind_pass_their_own_check() -> None:
    check_lifecycle("document", DOCUMENT)
    check_lifecycle("case", LIFECYCLES["case"])
    check_lifecycle("case", declared())
    check_lifecycle("case", declared(owner=Owner.EMBEDDED, projection="a:b"))
    check_lifecycle("case", Lifecycle(kind=Kind.FREE, owner=Owner.CALLER))
