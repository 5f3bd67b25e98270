"""Registering: creating a tenant beside the service's own, closing one, and saying how each is."""

from __future__ import annotations

from pathlib import Path

import msgspec
from msgspec import Struct

from api.glancing import Glance, glance
from journal.clock import SystemClock
from journal.control import Authority, Control, Role, Stage
from journal.entry import check_tenant
from journal.errors import NotFound, Refused, UnrewindError
from journal.migrating import check_format
from journal.places import masked, place_of_log, place_of_store
from journal.record import Record
from journal.registry import Earlier, Registered, Registry, lasting
from journal.settings import Settings, scheme_of
from journal.standing import change_control, detect
from journal.tokens import create_token
from journal.worker import drive
from journal.writepath import settle

FIRST_TOKEN = "first token"  # noqa: S105 - a token's name
MAX_REASON = 1000


class Place(Struct, frozen=True):
    """Where a tenant is to be; None is where the service's own tenant is."""

    store: str | None = None
    journal: str | None = None
    witness: str | None = None


USUAL = Place()
"""Where the service's own tenant is."""


class Before(Struct, frozen=True):
    """Where a tenant was before it moved. What is there is kept, and closed."""

    store: str
    journal: str
    until: str


class TenantView(Struct, frozen=True, kw_only=True):
    """A tenant of the service, and how it stands.

    ``open`` says whether the asking process has it open now. Places are shown without passwords.
    """

    tenant: str
    own: bool
    stage: str
    verdict: str
    detail: str
    store: str
    journal: str
    witness: str
    created: str | None
    open: bool | None = None
    earlier: list[Before] = []


class Created(Struct, frozen=True):
    """A new tenant, with its first operator token, which is told this once."""

    tenant: str
    store: str
    journal: str
    witness: str
    token: str


def registry_of(settings: Settings) -> Registry:
    """The registry of the service's data directory."""
    return Registry(settings.home)


def settings_of(base: Settings, name: str, found: Registered | None = None) -> Settings:
    """The settings of a tenant of this service.

    Raises Invalid for what is no name, NotFound for one that the service does not have, or
    SettingsInvalid where its file is damaged.
    """
    if found is None:
        found = registry_of(base).read(name)
    if found is None:
        if name == base.tenant:
            return base
        raise NotFound(
            f"there is no tenant {name} here; `unrewind tenant list` names those that there are",
            tenant=name,
        )
    return msgspec.structs.replace(
        base, tenant=name, store=found.store, journal=found.journal, witness=found.witness
    )


def names_of(base: Settings) -> list[str]:
    """Every tenant of the service, its own first."""
    names = registry_of(base).names()
    return [base.tenant, *[name for name in names if name != base.tenant]]


def create(
    base: Settings, name: str, where: Place = USUAL, principal: str | None = None
) -> Created:
    """Found a tenant, register it, and give it a first operator token.

    The tenant is founded first and registered last: killed in between, the same call again finishes
    it. Raises Refused where there is one of that name, or another one in its place.
    """
    check_tenant(name)
    registry = registry_of(base)
    if name == base.tenant or registry.read(name) is not None:
        raise Refused(
            f"there is a tenant {name} already; make a token for it with "
            f"`unrewind token create --tenant {name}`"
        )
    registered = Registered(
        name,
        lasting(where.store if where.store is not None else base.store),
        lasting(where.journal if where.journal is not None else base.journal),
        lasting(where.witness if where.witness is not None else base.witness),
        SystemClock().now(),
        principal,
    )
    settings = settings_of(base, name, registered)
    _check_apart(settings)
    record = Record(settings)
    try:
        drive(record.open(create=True))
        drive(check_format(record))
        token = drive(create_token(record, Role.OPERATOR, FIRST_TOKEN, principal))
        # So that its files are known to be sound, and nobody has to open it to find out.
        drive(detect(record, deep=True))
        drive(settle(record))
    finally:
        drive(record.close())
    registry.write(registered)
    return Created(
        name,
        place_of_store(settings).label,
        place_of_log(settings).label,
        str(settings.witness_file),
        token,
    )


def _check_apart(settings: Settings) -> None:
    places = (settings.store, settings.journal)
    if any(where is not None and scheme_of(where) is not None for where in places):
        return
    if settings.store_file.resolve() == settings.journal_file.resolve():
        raise Refused("store and journal must lie in different directories: name another one")


def close(settings: Settings, reason: str, principal: str | None = None) -> bool:
    """Close a tenant to decisions, by a control entry; whether it was not closed before.

    Nothing is removed: it can be looked at, and `unrewind recover reopen` opens it again. Raises
    Refused without a reason, ControlUnreadable, JournalUnavailable or LockHeld.
    """
    if not reason.strip() or len(reason) > MAX_REASON:
        raise Refused(f"say why, in 1 to {MAX_REASON} characters: the reason is journalled")
    changed = False

    def closed(control: Control) -> Authority:
        nonlocal changed
        changed = True
        return msgspec.structs.replace(control.authority, stage=Stage.CLOSED)

    record = Record(settings)
    try:
        drive(record.open(create=False))
        drive(check_format(record))
        drive(
            change_control(
                record,
                "close",
                closed,
                {"reason": reason, "verdict": None},
                principal=principal,
                unless=lambda control: control.authority.stage is Stage.CLOSED,
            )
        )
    finally:
        drive(record.close())
    return changed


def view(base: Settings, name: str, *, opened: bool | None = None) -> TenantView:
    """How a tenant of the service stands, from its files. Raises Invalid or NotFound."""
    registered = registry_of(base).read(name)
    settings = settings_of(base, name, registered)
    try:
        seen = glance(settings)
    except (UnrewindError, OSError) as error:
        seen = _unseen(error)
    return TenantView(
        tenant=name,
        own=name == base.tenant,
        stage=seen.stage,
        verdict=seen.verdict,
        detail=seen.detail,
        store=place_of_store(settings).label,
        journal=place_of_log(settings).label,
        witness=str(settings.witness_file),
        created=None if registered is None else registered.created,
        open=opened,
        earlier=[] if registered is None else [_before(base, name, e) for e in registered.earlier],
    )


def _unseen(error: Exception) -> Glance:
    detail = error.detail if isinstance(error, UnrewindError) else str(error)
    return Glance("closed", "closed", detail, stopped=False, known=False, due=False, sound=False)


def _before(base: Settings, name: str, earlier: Earlier) -> Before:
    return Before(
        _shown(earlier.store, base.home / "store", name),
        _shown(earlier.journal, base.home / "journal", name),
        earlier.until,
    )


def _shown(where: str | None, usual: Path, name: str) -> str:
    if where is not None and scheme_of(where) is not None:
        return masked(where)
    return str(Path(where or usual) / f"{name}.db")
