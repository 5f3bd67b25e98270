"""Lifecycles: what may follow what, and declarations that contradict themselves."""

import msgspec
import pytest

from journal.errors import Invalid, SettingsInvalid, TransitionRefused
from journal.lifecycle import (
    DOCUMENT,
    RELEASE_ACTIONS,
    Action,
    Command,
    Kind,
    Lifecycle,
    Owner,
    check_lifecycle,
    lifecycle_of,
    step,
    step_of_release,
)

LIFECYCLES = {"document": DOCUMENT, "case": Lifecycle(kind=Kind.FREE)}

ALLOWED = {
    (None, "submit"): "submitted",
    ("submitted", "submit"): "submitted",
    ("submitted", "approve"): "approved",
    ("submitted", "cancel"): "cancelled",
    ("approved", "cancel"): "cancelled",
    ("approved", "revoke"): "revoked",
    ("approved", "release"): "approved",
    ("revoked", "submit"): "submitted",
    ("revoked", "approve"): "approved",
    ("revoked", "cancel"): "cancelled",
    ("committed", "cancel"): "cancel-requested",
    ("released", "recall"): "recalled",
}
OUTCOMES = {
    ("approved", "release.committed"): "committed",
    ("committed", "release.confirmed"): "released",
    ("cancel-requested", "release.confirmed"): "released",
    ("committed", "release.refused"): "approved",
    ("cancel-requested", "release.refused"): "cancelled",
    ("committed", "release.cancelled"): "approved",
    ("cancel-requested", "release.cancelled"): "cancelled",
}
STATES = (
    None,
    "submitted",
    "approved",
    "cancelled",
    "revoked",
    "committed",
    "cancel-requested",
    "released",
    "recalled",
)
DECIDED = [name for name in DOCUMENT.actions if not name.startswith(RELEASE_ACTIONS)]
REPORTED = [name for name in DOCUMENT.actions if name.startswith(RELEASE_ACTIONS)]


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("action", [*DECIDED, "unheard-of"])
def test_a_document_takes_exactly_its_declared_transitions(state: str | None, action: str) -> None:
    wanted = ALLOWED.get((state, action))
    if wanted is not None:
        assert step(DOCUMENT, state, action, "1", "1") == wanted
        return
    with pytest.raises(TransitionRefused) as refused:
        step(DOCUMENT, state, action, "1", "1")
    allowed = sorted(name for at, name in ALLOWED if at == state)
    assert refused.value.members["allowed"] == allowed
    assert refused.value.members["state"] == (state or "draft")


@pytest.mark.parametrize("state", STATES[1:])
@pytest.mark.parametrize("action", [*REPORTED, "release.unknown", "release.incident"])
def test_what_became_of_a_release_is_never_refused_by_the_state_it_meets(
    state: str, action: str
) -> None:
    assert step_of_release(DOCUMENT, state, action) == OUTCOMES.get((state, action), state)


@pytest.mark.parametrize("action", ["release", "recall"])
def test_an_action_that_releases_needs_the_version_it_decides_on(action: str) -> None:
    state = {"release": "approved", "recall": "released"}[action]
    with pytest.raises(Invalid) as refused:
        step(DOCUMENT, state, action, None, None)
    assert refused.value.members == {"field": "version"}


@pytest.mark.parametrize("decided", [None, "3", "40"])
def test_an_approval_of_one_version_releases_no_other(decided: str | None) -> None:
    with pytest.raises(TransitionRefused) as refused:
        step(DOCUMENT, "approved", "release", "4", decided)
    assert refused.value.members == {
        "state": "approved",
        "action": "release",
        "version": "4",
        "decided": decided,
    }
    assert "version 4" in refused.value.detail


def test_a_recall_may_name_another_version_than_the_one_that_went_out() -> None:
    assert step(DOCUMENT, "released", "recall", "4", "3") == "recalled"


def test_an_action_leads_elsewhere_from_the_states_that_it_names_instead() -> None:
    action = Action(("a", "b"), "there", instead={"b": "elsewhere"})
    assert [action.target(state) for state in ("a", "b")] == ["there", "elsewhere"]


def test_a_free_lifecycle_takes_any_action_and_its_state_is_that_action() -> None:
    free = LIFECYCLES["case"]
    assert step(free, None, "opened", None, None) == "opened"
    assert step(free, "opened", "anything at all", None, "9") == "anything at all"


def test_an_undeclared_type_is_refused_with_the_lines_that_would_declare_it() -> None:
    with pytest.raises(Invalid) as refused:
        lifecycle_of(LIFECYCLES, "invoice/1")
    assert '`kind = "free"` under `[lifecycle.invoice]`' in refused.value.detail
    assert refused.value.members == {"field": "entity", "entity_type": "invoice"}


@pytest.mark.parametrize("entity", ["control/tenant", "observation/rel_0"])
def test_callers_cannot_name_what_unrewind_alone_writes(entity: str) -> None:
    with pytest.raises(Invalid, match="unrewind alone"):
        lifecycle_of(LIFECYCLES, entity)


def declared(**changes: object) -> Lifecycle:
    base = Lifecycle(actions={"open": Action(("draft",), "opened")})
    return msgspec.structs.replace(base, **changes)


WRONG = {
    "control": ("control", declared()),
    "observations": ("observation", declared()),
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
    "instead of a state that it does not start from": (
        "case",
        declared(actions={"x": Action(("draft",), "there", instead={"there": "draft"})}),
    ),
    "an outcome that permits a release": (
        "case",
        declared(
            actions={"release.confirmed": Action(("draft",), "there", releases=("delivery",))}
        ),
    ),
    "an outcome that asks for a command": (
        "case",
        declared(
            actions={"release.x": Action(("draft",), "there", commands=(Command("mail", "mail"),))}
        ),
    ),
    "a correction that releases nothing": (
        "case",
        declared(actions={"x": Action(("draft",), "there", corrects=True)}),
    ),
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
