"""Lanes and receivers: the declared queues of work, and where they send.

A *lane* is named by what its work does and has its own budget, rate, lease and dead letters. Its
``effect`` says what a failure costs: *external* work leaves the house and goes through the gate,
*internal* commands run at least once, *best-effort* items may be lost and are counted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import StrEnum
from hashlib import sha256

import msgspec
from msgspec import Struct

from journal.entry import MAX_ACTION, check_name, check_type
from journal.errors import Invalid, SettingsInvalid
from journal.lifecycle import Lifecycle, Mode, Owner


class Effect(StrEnum):
    """What a lane's work does, and so what it may cost."""

    EXTERNAL = "external"
    INTERNAL = "internal"
    BEST_EFFORT = "best-effort"


class Contract(StrEnum):
    """What a receiver promises about a release ID that it sees again.

    *idempotent*: the same ID has the same outcome, within a window. *queryable*: it can be asked.
    *opaque*: neither, so an unknown outcome stays with a person.
    """

    IDEMPOTENT = "idempotent"
    QUERYABLE = "queryable"
    OPAQUE = "opaque"


class Receiver(Struct, frozen=True, forbid_unknown_fields=True):
    """Where push lanes send, and what it promises. Times in seconds.

    ``window`` is how long it suppresses a repeated ID (idempotent) or can be asked about one
    (queryable). ``works`` is how long it may still be at work on a request that timed out.
    Secrets are named, never written here: ``secret_env`` and ``token_env`` are environment
    variables.
    """

    url: str
    status_url: str | None = None
    contract: Contract = Contract.OPAQUE
    window: float = 0.0
    timeout: float = 10.0
    works: float = 60.0
    poll: float = 15.0
    rate: float = 0.0
    refuses_reuse: bool = False
    returns_digest: bool = False
    secret_env: str | None = None
    callback_secret_env: str | None = None
    token_env: str | None = None


class Lane(Struct, frozen=True, forbid_unknown_fields=True):
    """One lane. Times in seconds, ``rate`` in items a second (0: no limit).

    ``owner`` answers for what is unresolved in it, ``resolve_within`` seconds after it was accepted
    (0: the setting of the same name).

    With a ``receiver`` it pushes, with a ``handler`` (`module:function`, not for external effects)
    the service runs the work itself, with neither workers pull it. ``recipient``, ``digest``,
    ``due`` and ``weight`` name fields of the entity's data from which a release takes these.
    """

    effect: Effect = Effect.EXTERNAL
    receiver: str | None = None
    handler: str | None = None
    contract: Contract | None = None
    window: float = 0.0
    concurrency: int = 4
    batch: int = 1
    rate: float = 0.0
    attempts: int = 5
    expirations: int = 10
    backoff: float = 1.0
    backoff_cap: float = 60.0
    expected: float = 10.0
    timeout: float = 10.0
    lease: float = 60.0
    sweep_after: float = 120.0
    cap: float = 300.0
    replay: float = 0.0
    tolerance: float = 0.0
    limit: float = 0.0
    owner: str = "operator"
    resolve_within: float = 0.0
    recipient: str = "recipient"
    digest: str = "digest"
    due: str = "due"
    weight: str | None = None

    @property
    def external(self) -> bool:
        """Whether its work leaves the house, through gate and journal."""
        return self.effect is Effect.EXTERNAL

    @property
    def pulled(self) -> bool:
        """Whether workers claim its work."""
        return self.receiver is None and self.handler is None


_LONGEST = 315_360_000.0

DELIVERY = Lane()
"""The lane that the shipped `document` lifecycle releases to: workers pull, nothing is assumed."""


class Terms(Struct, frozen=True):
    """What a lane may rely on: its contract, for how long, and how a call is bounded."""

    contract: Contract
    window: float
    timeout: float
    works: float


def terms_of(lane: Lane, receivers: Mapping[str, Receiver]) -> Terms:
    """The terms of a lane: its receiver's, or those it declares for its workers."""
    receiver = receivers.get(lane.receiver) if lane.receiver is not None else None
    if receiver is None:
        return Terms(lane.contract or Contract.OPAQUE, lane.window, lane.timeout, lane.timeout)
    return Terms(receiver.contract, receiver.window, receiver.timeout, receiver.works)


def fingerprint(lanes: Mapping[str, Lane], receivers: Mapping[str, Receiver]) -> str:
    """A hash of everything declared, by which two processes tell whether they agree."""
    text = msgspec.json.encode([lanes, receivers], order="deterministic")
    return sha256(text).hexdigest()[:32]


def check_lanes(
    lanes: Mapping[str, Lane],
    receivers: Mapping[str, Receiver],
    lifecycles: Mapping[str, Lifecycle],
) -> None:
    """Refuse names that match nothing and times that contradict each other.

    A call must end before its lease, the lease before the sweep, and the sweep before the platform
    ends the process: else work is swept while it is alive, or never. Raises SettingsInvalid.
    """
    for name, receiver in receivers.items():
        _named("receiver", name)
        _check_receiver(name, receiver)
    for name, lane in lanes.items():
        _named("lane", name)
        _check_lane(name, lane, receivers)
    for kind, lifecycle in lifecycles.items():
        _check_lifecycle(kind, lifecycle, lanes)


def warnings(lanes: Mapping[str, Lane], receivers: Mapping[str, Receiver]) -> Iterator[str]:
    """What start-up says but does not refuse: calls in a row may add up to the platform's cap."""
    for name, lane in lanes.items():
        terms = terms_of(lane, receivers)
        calls = lane.batch * terms.timeout
        if calls >= lane.cap:
            yield (
                f"[lane.{name}]: {lane.batch} calls in a row of {terms.timeout:g} s each can reach "
                f"the cap of {lane.cap:g} s; only the sweeper ends what is cut off there"
            )


def _named(kind: str, name: str) -> None:
    try:
        check_type(name)
    except Invalid:
        raise SettingsInvalid(
            f"[{kind}.{name}]: a name is 1 to 64 of a-z, 0-9, _ and -, a letter first"
        ) from None


def _check_receiver(name: str, receiver: Receiver) -> None:
    where = f"[receiver.{name}]"
    for label, url in (("url", receiver.url), ("status_url", receiver.status_url)):
        if url is not None and not url.startswith(("http://", "https://")):
            raise SettingsInvalid(f"{where}: {label} must begin with http:// or https://")
    if receiver.status_url is not None and "{release}" not in receiver.status_url:
        raise SettingsInvalid(f"{where}: status_url must hold {{release}}, where the ID goes")
    if receiver.contract is Contract.QUERYABLE and receiver.status_url is None:
        raise SettingsInvalid(f'{where}: contract = "queryable" needs a status_url')
    if receiver.contract is not Contract.OPAQUE and receiver.window <= 0:
        raise SettingsInvalid(
            f"{where}: say for how many seconds it keeps a release ID: window = 86400"
        )
    for label in ("timeout", "works", "poll"):
        _above_zero(where, label, getattr(receiver, label))
    for label in ("window", "rate"):
        _not_negative(where, label, getattr(receiver, label))


def _check_lane(name: str, lane: Lane, receivers: Mapping[str, Receiver]) -> None:
    where = f"[lane.{name}]"
    if lane.receiver is not None and lane.receiver not in receivers:
        known = ", ".join(sorted(receivers)) or "none"
        raise SettingsInvalid(f"{where}: there is no receiver {lane.receiver}; declared: {known}")
    if lane.receiver is not None and lane.handler is not None:
        raise SettingsInvalid(f"{where}: name a receiver or a handler, not both")
    if lane.handler is not None and lane.external:
        raise SettingsInvalid(
            f"{where}: an external effect has a receiver, or workers that pull it; a handler is "
            'for effect = "internal" or "best-effort"'
        )
    if lane.receiver is not None and (lane.contract is not None or lane.window):
        raise SettingsInvalid(f"{where}: contract and window are its receiver's to declare")
    _check_numbers(where, lane)
    terms = terms_of(lane, receivers)
    if lane.contract in {Contract.IDEMPOTENT, Contract.QUERYABLE} and lane.window <= 0:
        raise SettingsInvalid(f"{where}: say for how many seconds an ID is kept: window = 86400")
    if not terms.timeout < lane.lease < lane.sweep_after < lane.cap:
        raise SettingsInvalid(
            f"{where}: a call must end before its lease, the lease before the sweep, the sweep "
            f"before the platform's cap: timeout {terms.timeout:g} < lease {lane.lease:g} < "
            f"sweep_after {lane.sweep_after:g} < cap {lane.cap:g} does not hold"
        )
    if lane.replay > terms.window and terms.contract is not Contract.OPAQUE:
        raise SettingsInvalid(
            f"{where}: replay = {lane.replay:g} s is longer than the {terms.window:g} s for which "
            "the receiver keeps an ID; what is older goes to reconciliation or a new decision"
        )
    if lane.replay and terms.contract is Contract.OPAQUE and lane.external:
        raise SettingsInvalid(f"{where}: nothing is replayed to an opaque receiver; drop replay")


def _check_numbers(where: str, lane: Lane) -> None:
    for label in ("concurrency", "batch", "attempts", "expirations"):
        if getattr(lane, label) < 1:
            raise SettingsInvalid(f"{where}: {label} must be at least 1")
    for label in ("backoff", "backoff_cap", "expected", "timeout", "lease", "sweep_after", "cap"):
        _above_zero(where, label, getattr(lane, label))
    for label in ("rate", "replay", "tolerance", "limit", "window", "resolve_within"):
        _not_negative(where, label, getattr(lane, label))
    if not lane.owner.strip():
        raise SettingsInvalid(f"{where}: owner must name who answers for what is unresolved")


def _check_lifecycle(kind: str, lifecycle: Lifecycle, lanes: Mapping[str, Lane]) -> None:
    for label, action in lifecycle.actions.items():
        where = f"[lifecycle.{kind}.actions.{label}]"
        for name in action.releases:
            lane = lanes.get(name)
            if lane is None:
                raise SettingsInvalid(f"{where}: it releases to lane {name}, which is not declared")
            if not lane.external:
                raise SettingsInvalid(
                    f'{where}: it releases to lane {name}, whose effect is "{lane.effect}"; list '
                    "its work under commands"
                )
        if action.releases and lifecycle.owner is Owner.CALLER:
            raise SettingsInvalid(f"{where}: a caller-owned type dispatches its effects itself")
        for command in action.commands:
            lane = lanes.get(command.lane)
            try:
                check_name("a command's name", command.name, MAX_ACTION)
            except Invalid as error:
                raise SettingsInvalid(f"{where}: {error.detail}") from None
            if lane is None:
                raise SettingsInvalid(
                    f"{where}: command {command.name} is for lane {command.lane}, which is not "
                    "declared"
                )
            if lane.external:
                raise SettingsInvalid(
                    f"{where}: command {command.name} is for lane {command.lane}, whose effect is "
                    "external: list the lane under releases"
                )
            if command.mode is Mode.SYNC and lane.handler is None:
                raise SettingsInvalid(
                    f"{where}: command {command.name} runs in the request, so lane "
                    f"{command.lane} needs a handler"
                )


def _above_zero(where: str, label: str, value: float) -> None:
    if not value > 0:
        raise SettingsInvalid(f"{where}: {label} must be above 0")
    if value > _LONGEST and label != "cap":
        raise SettingsInvalid(f"{where}: {label} must be at most {_LONGEST:.0f} s, ten years")


def _not_negative(where: str, label: str, value: float) -> None:
    if not value >= 0:
        raise SettingsInvalid(f"{where}: {label} must not be negative")
