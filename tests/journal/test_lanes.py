"""Lanes and receivers: declarations that cannot hold are refused, each with its own sentence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from journal.errors import SettingsInvalid
from journal.lanes import (
    DELIVERY,
    Contract,
    Effect,
    Lane,
    Receiver,
    Terms,
    check_lanes,
    fingerprint,
    terms_of,
    warnings,
)
from journal.lifecycle import DOCUMENT, Action, Command, Lifecycle, Mode, Owner
from journal.settings import load

BANK = Receiver(
    url="https://bank.example/pay",
    status_url="https://bank.example/pay/{release}",
    contract=Contract.QUERYABLE,
    window=86_400.0,
)
ORDER = Lifecycle(
    initial="new",
    actions={
        "place": Action(
            ("new",),
            "placed",
            needs_version=True,
            releases=("pay",),
            commands=(Command("mail", "mail"),),
        )
    },
)


def check(
    lane: dict[str, Any] | None = None,
    receiver: dict[str, Any] | None = None,
    action: dict[str, Any] | None = None,
    *,
    name: str = "pay",
    receiver_name: str = "bank",
    **lifecycle: Any,
) -> None:
    """Check three declarations that go together, with these changes."""
    made = msgspec.structs.replace(ORDER.actions["place"], **(action or {}))
    lanes = {
        name: Lane(**{"receiver": receiver_name, **(lane or {})}),
        "mail": Lane(effect=Effect.INTERNAL),
    }
    receivers = {receiver_name: msgspec.structs.replace(BANK, **(receiver or {}))}
    kind = msgspec.structs.replace(ORDER, actions={"place": made}, **lifecycle)
    check_lanes(lanes, receivers, {"order": kind})


def test_what_is_shipped_and_what_goes_together_passes() -> None:
    check_lanes({"delivery": DELIVERY}, {}, {"document": DOCUMENT})
    check()


PULL = {"receiver": None}
HANDLED: dict[str, Any] = {"receiver": None, "handler": "shop:mail", "effect": Effect.INTERNAL}

REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    # Names.
    "a receiver's name": (
        {"receiver_name": "Bank"},
        "[receiver.Bank]: a name is 1 to 64 of a-z, 0-9, _ and -, a letter first",
    ),
    "a lane's name": (
        {"name": "pay/out"},
        "[lane.pay/out]: a name is 1 to 64 of a-z, 0-9, _ and -, a letter first",
    ),
    "a receiver that does not exist": (
        {"lane": {"receiver": "post"}},
        "[lane.pay]: there is no receiver post; declared: bank",
    ),
    "a lane that does not exist": (
        {"action": {"releases": ("pay", "post")}},
        "[lifecycle.order.actions.place]: it releases to lane post, which is not declared",
    ),
    "a command's lane that does not exist": (
        {"action": {"commands": (Command("tidy", "tidy"),)}},
        "[lifecycle.order.actions.place]: command tidy is for lane tidy, which is not declared",
    ),
    "a command without a name": (
        {"action": {"commands": (Command("", "mail"),)}},
        "[lifecycle.order.actions.place]: a command's name is empty",
    ),
    # Receivers.
    "a url of another kind": (
        {"receiver": {"url": "ftp://bank.example/"}},
        "[receiver.bank]: url must begin with http:// or https://",
    ),
    "a status_url of another kind": (
        {"receiver": {"status_url": "bank.example/{release}"}},
        "[receiver.bank]: status_url must begin with http:// or https://",
    ),
    "a status_url without the release": (
        {"receiver": {"status_url": "https://bank.example/"}},
        "[receiver.bank]: status_url must hold {release}, where the ID goes",
    ),
    "queryable without a lookup": (
        {"receiver": {"status_url": None}},
        '[receiver.bank]: contract = "queryable" needs a status_url',
    ),
    "queryable without a window": (
        {"receiver": {"window": 0.0}},
        "[receiver.bank]: say for how many seconds it keeps a release ID: window = 86400",
    ),
    "idempotent without a window": (
        {"receiver": {"window": 0.0, "contract": Contract.IDEMPOTENT}},
        "[receiver.bank]: say for how many seconds it keeps a release ID: window = 86400",
    ),
    # Lanes.
    "a receiver and a handler": (
        {"lane": {"handler": "shop:mail"}},
        "[lane.pay]: name a receiver or a handler, not both",
    ),
    "a handler for an external effect": (
        {"lane": {**PULL, "handler": "shop:mail"}},
        (
            "[lane.pay]: an external effect has a receiver, or workers that pull it; a handler is "
            'for effect = "internal" or "best-effort"'
        ),
    ),
    "a contract beside a receiver": (
        {"lane": {"contract": Contract.OPAQUE}},
        "[lane.pay]: contract and window are its receiver's to declare",
    ),
    "a window beside a receiver": (
        {"lane": {"window": 1.0}},
        "[lane.pay]: contract and window are its receiver's to declare",
    ),
    "an idempotent worker without a window": (
        {"lane": {**PULL, "contract": Contract.IDEMPOTENT}},
        "[lane.pay]: say for how many seconds an ID is kept: window = 86400",
    ),
    "a replay longer than the window": (
        {"lane": {"replay": 86_401.0}},
        (
            "[lane.pay]: replay = 86401 s is longer than the 86400 s for which the receiver keeps "
            "an ID; what is older goes to reconciliation or a new decision"
        ),
    ),
    "a replay to an opaque receiver": (
        {"lane": {"replay": 1.0}, "receiver": {"contract": Contract.OPAQUE}},
        "[lane.pay]: nothing is replayed to an opaque receiver; drop replay",
    ),
    # Lifecycles.
    "a release to an internal lane": (
        {"action": {"releases": ("mail",)}},
        (
            '[lifecycle.order.actions.place]: it releases to lane mail, whose effect is "internal"'
            "; list its work under commands"
        ),
    ),
    "a command in an external lane": (
        {"action": {"commands": (Command("wire", "pay"),)}},
        (
            "[lifecycle.order.actions.place]: command wire is for lane pay, whose effect is "
            "external: list the lane under releases"
        ),
    ),
    "a release of a caller's": (
        {"owner": Owner.CALLER},
        "[lifecycle.order.actions.place]: a caller-owned type dispatches its effects itself",
    ),
    "a command in the request without a handler": (
        {"action": {"commands": (Command("mail", "mail", Mode.SYNC),)}},
        (
            "[lifecycle.order.actions.place]: command mail runs in the request, so lane mail needs "
            "a handler"
        ),
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_a_declaration_that_cannot_hold_is_refused_with_what_to_do(what: str) -> None:
    changes, sentence = REFUSED[what]
    with pytest.raises(SettingsInvalid) as refused:
        check(**changes)
    assert refused.value.detail == sentence


def test_without_any_receiver_the_sentence_says_so() -> None:
    with pytest.raises(SettingsInvalid, match="there is no receiver bank; declared: none"):
        check_lanes({"pay": Lane(receiver="bank")}, {}, {})


@pytest.mark.parametrize("label", ["concurrency", "batch", "attempts", "expirations"])
def test_a_count_below_one_is_refused(label: str) -> None:
    check({label: 1})
    for value in (0, -1):
        with pytest.raises(SettingsInvalid) as refused:
            check({label: value})
        assert refused.value.detail == f"[lane.pay]: {label} must be at least 1"


TIMES = ("backoff", "backoff_cap", "expected", "timeout", "lease", "sweep_after", "cap")


@pytest.mark.parametrize("label", TIMES)
@pytest.mark.parametrize("value", [0.0, -1.0, float("nan")])
def test_a_time_that_is_not_above_zero_is_refused(label: str, value: float) -> None:
    with pytest.raises(SettingsInvalid) as refused:
        check({label: value})
    assert refused.value.detail == f"[lane.pay]: {label} must be above 0"


@pytest.mark.parametrize("label", [label for label in TIMES if label != "cap"])
@pytest.mark.parametrize("value", [315_360_001.0, float("inf")])
def test_a_time_that_nobody_can_wait_for_is_refused(label: str, value: float) -> None:
    with pytest.raises(SettingsInvalid) as refused:
        check({label: value, "cap": float("inf")})
    assert refused.value.detail == f"[lane.pay]: {label} must be at most 315360000 s, ten years"


def test_a_platform_may_have_no_cap() -> None:
    check({"cap": float("inf")})


@pytest.mark.parametrize("label", ["rate", "replay", "tolerance", "limit"])
@pytest.mark.parametrize("value", [-1.0, float("nan")])
def test_a_bound_below_zero_is_refused(label: str, value: float) -> None:
    with pytest.raises(SettingsInvalid) as refused:
        check({label: value})
    assert refused.value.detail == f"[lane.pay]: {label} must not be negative"


@pytest.mark.parametrize("label", ["timeout", "works", "poll"])
@pytest.mark.parametrize("value", [0.0, -1.0, float("nan")])
def test_a_receivers_time_that_is_not_above_zero_is_refused(label: str, value: float) -> None:
    with pytest.raises(SettingsInvalid) as refused:
        check(receiver={label: value})
    assert refused.value.detail == f"[receiver.bank]: {label} must be above 0"


@pytest.mark.parametrize("label", ["window", "rate"])
def test_a_receivers_bound_below_zero_is_refused(label: str) -> None:
    with pytest.raises(SettingsInvalid) as refused:
        check(receiver={label: -1.0, "contract": Contract.OPAQUE})
    assert refused.value.detail == f"[receiver.bank]: {label} must not be negative"


@pytest.mark.parametrize(
    ("timeout", "lease", "sweep_after", "cap"),
    [
        (60.0, 60.0, 120.0, 300.0),
        (10.0, 120.0, 120.0, 300.0),
        (10.0, 60.0, 300.0, 300.0),
        (400.0, 60.0, 120.0, 300.0),
        (10.0, 5.0, 120.0, 300.0),
    ],
)
def test_l1_a_call_ends_before_its_lease_that_before_the_sweep_that_before_the_cap(
    timeout: float, lease: float, sweep_after: float, cap: float
) -> None:
    times = {"lease": lease, "sweep_after": sweep_after, "cap": cap}
    with pytest.raises(SettingsInvalid, match="does not hold") as pushed:
        check(times, {"timeout": timeout})
    assert f"timeout {timeout:g} < lease {lease:g}" in pushed.value.detail
    with pytest.raises(SettingsInvalid, match="does not hold"):
        check({**times, **PULL, "timeout": timeout})


def test_l1_a_lane_that_pushes_is_bound_by_its_receivers_timeout_not_its_own() -> None:
    check({"timeout": 1000.0})
    with pytest.raises(SettingsInvalid, match="does not hold"):
        check({"timeout": 1.0}, {"timeout": 60.0})


def test_a_start_warns_where_calls_in_a_row_can_reach_the_platforms_cap() -> None:
    def said(**changes: Any) -> list[str]:
        return [*warnings({"pay": Lane(receiver="bank", **changes)}, {"bank": BANK})]

    assert said(batch=29) == []
    (warning,) = said(batch=30)
    assert warning == (
        "[lane.pay]: 30 calls in a row of 10 s each can reach the cap of 300 s; only the sweeper "
        "ends what is cut off there"
    )
    check({"batch": 30})


def test_the_terms_of_a_lane_are_its_receivers_or_its_own() -> None:
    receivers = {"bank": BANK}
    assert terms_of(Lane(receiver="bank"), receivers) == Terms(
        Contract.QUERYABLE, 86_400.0, 10.0, 60.0
    )
    own = Lane(contract=Contract.IDEMPOTENT, window=5.0, timeout=3.0)
    assert terms_of(own, receivers) == Terms(Contract.IDEMPOTENT, 5.0, 3.0, 3.0)
    # Nothing is assumed of workers that declare nothing.
    assert terms_of(Lane(), receivers).contract is Contract.OPAQUE


@pytest.mark.parametrize(
    ("lane", "pulled", "external"),
    [
        (Lane(), True, True),
        (Lane(receiver="bank"), False, True),
        (Lane(**HANDLED), False, False),
        (Lane(effect=Effect.BEST_EFFORT), True, False),
    ],
)
def test_a_lane_pushes_handles_or_is_pulled(lane: Lane, pulled: bool, external: bool) -> None:
    assert (lane.pulled, lane.external) == (pulled, external)


def test_two_processes_tell_by_a_fingerprint_whether_they_agree() -> None:
    lanes = {"pay": Lane(receiver="bank"), "mail": Lane(effect=Effect.INTERNAL)}
    known = fingerprint(lanes, {"bank": BANK})
    assert known == fingerprint(dict(reversed(lanes.items())), {"bank": BANK})
    for field, value in (("rate", 1.0), ("lease", 61.0), ("owner", "ops"), ("due", "when")):
        changed = {**lanes, "pay": msgspec.structs.replace(lanes["pay"], **{field: value})}
        assert fingerprint(changed, {"bank": BANK}) != known
    assert fingerprint(lanes, {"bank": msgspec.structs.replace(BANK, rate=1.0)}) != known
    assert fingerprint({"pay": lanes["pay"]}, {"bank": BANK}) != known


# In the file.

FILE = """
[receiver.bank]
url = "https://bank.example/pay"
contract = "idempotent"
window = 86400
secret_env = "BANK_SECRET"

[lane.pay]
receiver = "bank"
rate = 50

[lane.mail]
effect = "internal"
handler = "shop:mail"

[lifecycle.order]
initial = "new"
[lifecycle.order.actions.place]
from = ["new"]
to = "placed"
needs_version = true
releases = ["pay"]
commands = [{ name = "receipt", lane = "mail", mode = "sync" }]
"""


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "unrewind.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_lanes_and_receivers_come_from_the_file_beside_the_shipped_one(tmp_path: Path) -> None:
    environment = {"UNREWIND_LANE": "ignored", "UNREWIND_RECEIVER": "ignored"}
    found = load(write(tmp_path, FILE), environment=environment)
    assert set(found.lanes) == {"delivery", "pay", "mail"}
    assert found.lanes["delivery"] == DELIVERY
    assert found.receiver["bank"].contract is Contract.IDEMPOTENT
    place = found.lifecycles["order"].actions["place"]
    assert place.commands == (Command("receipt", "mail", Mode.SYNC),)


@pytest.mark.parametrize(
    ("before", "after", "named"),
    [
        ("rate = 50", "rates = 50", "rates"),
        ('secret_env = "BANK_SECRET"', 'secret = "hush"', "secret"),
        ('contract = "idempotent"', 'contract = "sure"', "contract"),
        ('effect = "internal"', 'effect = "inside"', "effect"),
        ('mode = "sync"', 'mode = "soon"', "mode"),
        ('name = "receipt", ', "", "name"),
        ('receiver = "bank"', 'receiver = "bnak"', "bnak"),
    ],
)
def test_a_name_that_matches_nothing_is_refused_at_the_start(
    tmp_path: Path, before: str, after: str, named: str
) -> None:
    assert FILE.count(before) == 1
    with pytest.raises(SettingsInvalid, match=named):
        load(write(tmp_path, FILE.replace(before, after)), environment={})
