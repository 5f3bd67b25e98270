"""Settings: the one place that reads them.

``unrewind.toml``, overridden by ``UNREWIND_*`` in the environment, overridden by what the caller
passes (command-line flags). Every field is described in docs/configuration.md.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from journal.entry import check_tenant
from journal.errors import Invalid, Refused, SettingsInvalid
from journal.lanes import DELIVERY, Lane, Receiver, check_lanes
from journal.lifecycle import DOCUMENT, Lifecycle, check_lifecycle
from journal.registry import placed

CONFIG_NAME = "unrewind.toml"
PREFIX = "UNREWIND_"


_TABLES = frozenset({"lifecycle", "lane", "receiver", "alert", "objective"})
"""Settings that only the file can give."""


_PLACES = ("data", "store", "journal", "witness", "evidence")
"""Settings that are paths, or URLs."""


WEAKER = frozenset(
    {
        "postgres-fsync-off",
        "postgres-async-commit",
        "nats-sync-interval",
        "nats-single-server",
        "same-server",
    }
)
"""Promises of a server's engine that are weaker than ours, as ``accept`` names them."""


class Alert(Struct, frozen=True, forbid_unknown_fields=True):
    """Where alerts go besides the log and the metrics; the secret is named, never written here."""

    webhook: str | None = None
    secret_env: str | None = None
    timeout: float = 10.0


class Objective(Struct, frozen=True, forbid_unknown_fields=True):
    """What a recovery is measured against. Seconds from its begin; 0 is no objective.

    ``lost`` is how many acknowledged decisions may be lost.
    """

    safe_within: float = 0.0
    backlog_within: float = 0.0
    lost: int = 0


class Settings(Struct, frozen=True, forbid_unknown_fields=True):
    """What an operator may choose. Sizes in bytes, times in seconds, paths relative to the cwd."""

    data: str = "data"
    store: str | None = None
    journal: str | None = None
    witness: str | None = None
    evidence: str | None = None
    tenant: str = "main"
    instance: str = "default"
    host: str = "127.0.0.1"
    port: int = 8420
    allow_network_filesystem: bool = False
    max_waiting: int = 8192
    max_batch: int = 1024
    max_body: int = 1_048_576
    max_request: int = 8_388_608
    max_connections: int = 4096
    lock_timeout: float = 4.0
    handoff_every: float = 2.0
    detect_every: float = 60.0
    witness_every: float = 0.5
    max_undo: int = 100
    owner: str = "operations"
    accept: list[str] = []
    resolve_within: float = 86_400.0
    dispatch: bool = True
    dispatch_every: float = 1.0
    alive_for: float = 30.0
    sweep_every: float = 30.0
    sweep_overdue: float = 300.0
    max_outstanding: float = 1_000_000.0
    keep: float = 2_592_000.0
    tenants_open: int = 64
    tenants_every: float = 30.0
    lifecycle: dict[str, Lifecycle] = {}
    lane: dict[str, Lane] = {}
    receiver: dict[str, Receiver] = {}
    alert: Alert = Alert()
    objective: Objective = Objective()

    @property
    def lifecycles(self) -> dict[str, Lifecycle]:
        """Every entity type: the shipped `document` and the declared ones, which may replace it."""
        return {"document": DOCUMENT, **self.lifecycle}

    @property
    def lanes(self) -> dict[str, Lane]:
        """Every lane: the shipped `delivery` and the declared ones, which may replace it."""
        return {"delivery": DELIVERY, **self.lane}

    @property
    def home(self) -> Path:
        """The data directory: lock, stop file and evidence, and by default store and journal."""
        return Path(self.data)

    @property
    def store_file(self) -> Path:
        """The embedded store's database file. Raises Refused where the store is on a server."""
        _check_embedded("the store", self.store)
        return Path(self.store or self.home / "store") / f"{self.tenant}.db"

    @property
    def journal_file(self) -> Path:
        """The journal's database file. Raises Refused where the journal is on a server."""
        _check_embedded("the journal", self.journal)
        return Path(self.journal or self.home / "journal") / f"{self.tenant}.db"

    @property
    def witness_file(self) -> Path:
        """The witness: a third place that remembers where the journal stood."""
        return Path(self.witness or self.home / "witness") / f"{self.tenant}.json"

    @property
    def evidence_home(self) -> Path:
        """Where evidence bundles are kept."""
        return Path(self.evidence or self.home / "evidence")

    @property
    def seen_file(self) -> Path:
        """What was noted of the store: beside the journal, which is not restored with it."""
        if scheme_of(self.journal) is None:
            return self.journal_file.with_suffix(".seen")
        return self.beside("seen")

    def beside(self, suffix: str) -> Path:
        """A file of this tenant in the data directory, outside store and journal."""
        return self.home / f"{self.tenant}.{suffix}"


def scheme_of(where: str | None) -> str | None:
    """The scheme of a server's URL; None for a directory."""
    scheme, separator, _ = (where or "").partition("://")
    return scheme.lower() if separator else None


def _check_embedded(what: str, where: str | None) -> None:
    if scheme_of(where) is not None:
        raise Refused(f"{what} is on a server: there is no file of it here")


def load(
    config: str | Path | None = None,
    overrides: Mapping[str, Any] | None = None,
    environment: Mapping[str, str] | None = None,
) -> Settings:
    """Read the settings; a named ``config`` must exist, the default one may be absent.

    Raises SettingsInvalid with the name of the setting and what to do about it.
    """
    environment = os.environ if environment is None else environment
    named = config or environment.get(PREFIX + "CONFIG")
    values = _read_file(config_file(config, environment), required=named is not None)
    for field in Settings.__struct_fields__:
        text = environment.get(PREFIX + field.upper())
        if text is not None and field not in _TABLES:
            values[field] = _words(text) if field == "accept" else text
    given = {key: value for key, value in (overrides or {}).items() if value is not None}
    for field in _PLACES:
        if "\0" in str({**values, **given}.get(field)):
            raise SettingsInvalid(f"{field} holds the character U+0000, which no path has")
    values = placed(values, given)
    try:
        settings = msgspec.convert(values, Settings, strict=False)
    except msgspec.ValidationError as error:
        raise SettingsInvalid(f"{named or CONFIG_NAME}: {error}") from None
    _check(settings)
    return settings


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def config_file(
    config: str | Path | None = None, environment: Mapping[str, str] | None = None
) -> Path:
    """Where the configuration file is to be: as named, as the environment says, or the default."""
    environment = os.environ if environment is None else environment
    return Path(config or environment.get(PREFIX + "CONFIG") or CONFIG_NAME)


def _read_file(path: Path, *, required: bool) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        if required:
            raise SettingsInvalid(f"there is no configuration file {path}") from None
        return {}
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise SettingsInvalid(f"{path}: {error}") from None


def _check_places(settings: Settings) -> None:
    if scheme_of(settings.store) is None and scheme_of(settings.journal) is None:
        if settings.store_file.resolve() == settings.journal_file.resolve():
            raise SettingsInvalid("store and journal must lie in different directories")
    elif settings.store == settings.journal:
        raise SettingsInvalid("store and journal must lie on different servers")
    unknown = sorted(set(settings.accept) - WEAKER)
    if unknown:
        raise SettingsInvalid(
            f"accept: {unknown[0]} is none of the weaker promises: {', '.join(sorted(WEAKER))}"
        )


def _check(settings: Settings) -> None:
    try:
        check_tenant(settings.tenant)
        check_tenant(settings.instance)
    except Invalid as error:
        raise SettingsInvalid(f"tenant, instance: {error.detail}") from None
    if not 0 <= settings.port <= 65535:  # noqa: PLR2004 - the range of TCP ports
        raise SettingsInvalid("port must be from 0 to 65535")
    for field in (
        "max_waiting",
        "max_batch",
        "max_body",
        "max_request",
        "max_connections",
        "tenants_open",
    ):
        if getattr(settings, field) < 1:
            raise SettingsInvalid(f"{field} must be at least 1")
    for field in (
        "lock_timeout",
        "handoff_every",
        "detect_every",
        "witness_every",
        "resolve_within",
        "dispatch_every",
        "alive_for",
        "sweep_every",
        "sweep_overdue",
        "max_outstanding",
        "keep",
        "tenants_every",
    ):
        if not getattr(settings, field) > 0:
            raise SettingsInvalid(f"{field} must be above 0")
    if settings.max_undo < 0 or settings.objective.lost < 0:
        raise SettingsInvalid("max_undo and objective.lost must not be negative")
    if not (settings.objective.safe_within >= 0 and settings.objective.backlog_within >= 0):
        raise SettingsInvalid("objective: safe_within and backlog_within must not be negative")
    if not settings.owner:
        raise SettingsInvalid("owner must name who answers for what is unresolved")
    _check_places(settings)
    for name, lifecycle in settings.lifecycles.items():
        check_lifecycle(name, lifecycle)
    check_lanes(settings.lanes, settings.receiver, settings.lifecycles)
