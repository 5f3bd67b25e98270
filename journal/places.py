"""Where a tenant's store and journal are: the one file that tells engines apart.

A setting names a directory, where the embedded engine keeps a file, or the URL of a server. A
server's engine is imported when it is named, so nobody needs a driver that is not used.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Protocol

from journal.errors import Refused, SettingsInvalid
from journal.files import has_content, move_aside, whole_or_absent
from journal.locks import Lock, TurnLock
from journal.log.engine import SqlLog
from journal.log.sqlite import SqliteLog
from journal.settings import Settings, scheme_of
from journal.sql import Stamp
from journal.sqlite import size_of, stamp_of
from journal.store.engine import SqlStore
from journal.store.sqlite import SqliteStore

POSTGRES = frozenset({"postgresql", "postgres"})
NATS = "nats"
SAME = "same-server"


class StorePlace(Protocol):
    """Where one tenant's store is. ``file`` is None where it is no file of this machine."""

    label: str
    file: Path | None

    def exists(self) -> bool:
        """Whether there is a store. Raises Unreachable when nobody can tell now."""

    def settled(self) -> bool:
        """Whether a stamp tells everything: nothing waits beside the database to be put into it."""

    def stamp(self) -> Stamp | None:
        """The store as its system sees it; None: there is none."""

    def open(self, *, read_only: bool = False) -> SqlStore:
        """Open it. Raises Unreachable, Damaged or SettingsInvalid."""

    def set_aside(self, now: str) -> str | None:
        """Keep what stands there under another name, so that nothing does; which name.

        None: nothing was there. Raises OSError or EngineError.
        """

    def created(self) -> AbstractContextManager[SqlStore]:
        """A new store to put the first rows into: whole, or not there at all."""


class LogPlace(Protocol):
    """Where one tenant's journal is. ``file`` is None where it is no file of this machine."""

    label: str
    file: Path | None

    def exists(self) -> bool:
        """Whether there is a journal. Raises Unreachable when nobody can tell now."""

    def open(self, *, read_only: bool = False) -> SqlLog:
        """Open it. Raises Unreachable, Damaged or SettingsInvalid."""

    def afresh(self, folder: Path, /) -> LogPlace:
        """The journal itself, read anew where this machine keeps a copy: into ``folder`` then."""

    def created(self) -> AbstractContextManager[SqlLog]:
        """A new journal to put its founding into: whole, or not there at all."""


class StoreFile:
    """The embedded store: one SQLite file."""

    def __init__(self, file: Path) -> None:
        self.label = str(file)
        self.file: Path | None = file
        self._path = file

    def exists(self) -> bool:
        """See ``StorePlace.exists``."""
        return has_content(self._path)

    def settled(self) -> bool:
        """See ``StorePlace.settled``. A reader leaves an empty write-ahead log behind."""
        return size_of(self._path.with_name(self._path.name + "-wal")) == 0

    def stamp(self) -> Stamp | None:
        """See ``StorePlace.stamp``."""
        return stamp_of(self._path)

    def open(self, *, read_only: bool = False) -> SqlStore:
        """See ``StorePlace.open``."""
        return SqliteStore(self._path, read_only=read_only)

    def set_aside(self, now: str) -> str | None:
        """See ``StorePlace.set_aside``: a directory beside it."""
        aside = move_aside(self._path, now)
        return None if aside is None else str(aside)

    @contextmanager
    def created(self) -> Iterator[SqlStore]:
        """See ``StorePlace.created``."""
        with whole_or_absent(self._path) as aside:
            store = SqliteStore(aside, create=True)
            try:
                yield store
            finally:
                store.database.close()


class LogFile:
    """The embedded journal: one SQLite file."""

    def __init__(self, file: Path) -> None:
        self.label = str(file)
        self.file: Path | None = file
        self._path = file

    def exists(self) -> bool:
        """See ``LogPlace.exists``."""
        return has_content(self._path)

    def open(self, *, read_only: bool = False) -> SqlLog:
        """See ``LogPlace.open``."""
        return SqliteLog(self._path, read_only=read_only)

    def afresh(self, _folder: Path, /) -> LogPlace:
        """See ``LogPlace.afresh``: nothing is kept of it elsewhere."""
        return self

    @contextmanager
    def created(self) -> Iterator[SqlLog]:
        """See ``LogPlace.created``."""
        with whole_or_absent(self._path) as aside:
            log = SqliteLog(aside, create=True)
            try:
                yield log
            finally:
                log.database.close()


class StoreServer:
    """A store in a PostgreSQL database."""

    file: Path | None = None

    def __init__(self, url: str, tenant: str, accept: Sequence[str]) -> None:
        with _driver("postgres"):
            from journal.store.postgres import PostgresStore  # noqa: PLC0415 - see above

        self.label = masked(url)
        self._url, self._tenant, self._accept = url, tenant, accept
        self._engine = PostgresStore

    def exists(self) -> bool:
        """See ``StorePlace.exists``."""
        return self._engine.exists(self._url, self._tenant)

    def settled(self) -> bool:
        """See ``StorePlace.settled``."""
        return True

    def stamp(self) -> Stamp | None:
        """See ``StorePlace.stamp``."""
        if not self.exists():
            return None
        store = self._engine(self._url, self._tenant, read_only=True)
        try:
            return store.stamp()
        finally:
            store.database.close()

    def open(self, *, read_only: bool = False) -> SqlStore:
        """See ``StorePlace.open``."""
        store = self._engine(self._url, self._tenant, read_only=read_only)
        admit(store, self._accept)
        return store

    def set_aside(self, now: str) -> str | None:
        """See ``StorePlace.set_aside``: another schema of the same database."""
        return self._engine.set_aside(self._url, self._tenant, now)

    @contextmanager
    def created(self) -> Iterator[SqlStore]:
        """See ``StorePlace.created``: there is a store once its marker is there."""
        store = self._engine(self._url, self._tenant, create=True)
        try:
            admit(store, self._accept)
            yield store
        finally:
            store.database.close()


class LogServer:
    """A journal in a PostgreSQL database."""

    file: Path | None = None

    def __init__(self, url: str, tenant: str, accept: Sequence[str]) -> None:
        with _driver("postgres"):
            from journal.log.postgres import PostgresLog  # noqa: PLC0415 - see above

        self.label = masked(url)
        self._url, self._tenant, self._accept = url, tenant, accept
        self._engine = PostgresLog

    def exists(self) -> bool:
        """See ``LogPlace.exists``."""
        return self._engine.exists(self._url, self._tenant)

    def open(self, *, read_only: bool = False) -> SqlLog:
        """See ``LogPlace.open``."""
        log = self._engine(self._url, self._tenant, read_only=read_only)
        admit(log, self._accept)
        return log

    def afresh(self, _folder: Path, /) -> LogPlace:
        """See ``LogPlace.afresh``: nothing is kept of it elsewhere."""
        return self

    @contextmanager
    def created(self) -> Iterator[SqlLog]:
        """See ``LogPlace.created``: there is a journal once its founding is there."""
        log = self._engine(self._url, self._tenant, create=True)
        try:
            admit(log, self._accept)
            yield log
        finally:
            log.database.close()


class LogStream:
    """A journal in a stream of NATS JetStream, with a copy of it on this machine."""

    file: Path | None = None

    def __init__(self, url: str, tenant: str, copy: Path, accept: Sequence[str]) -> None:
        with _driver("nats"):
            from journal.nats.log import NatsLog  # noqa: PLC0415 - see above

        self.label = masked(url)
        self._url, self._tenant, self._copy, self._accept = url, tenant, copy, accept
        self._engine = NatsLog

    def exists(self) -> bool:
        """See ``LogPlace.exists``."""
        return self._engine.exists(self._url, self._tenant)

    def open(self, *, read_only: bool = False) -> SqlLog:
        """See ``LogPlace.open``."""
        return self._engine(
            self._url, self._tenant, self._copy, read_only=read_only, accept=self._accept
        )

    def afresh(self, folder: Path, /) -> LogPlace:
        """See ``LogPlace.afresh``: another copy of the stream."""
        return LogStream(self._url, self._tenant, folder / self._copy.name, self._accept)

    @contextmanager
    def created(self) -> Iterator[SqlLog]:
        """See ``LogPlace.created``: there is a journal once its founding is there."""
        log = self._engine(self._url, self._tenant, self._copy, create=True, accept=self._accept)
        try:
            yield log
        finally:
            log.database.close()


def admit(engine: SqlStore | SqlLog, accept: Sequence[str]) -> None:
    """Refuse an engine whose settings promise less than nobody accepted. Raises SettingsInvalid."""
    for word, why in engine.weaker.items():
        if word not in accept:
            engine.database.close()
            raise SettingsInvalid(
                f"{engine.database.label}: {why}; change it there, or accept the weaker promise "
                f'by name: accept = ["{word}"]'
            )


@contextmanager
def _driver(extra: str) -> Iterator[None]:
    """Import an engine. Raises SettingsInvalid where its driver is not installed."""
    try:
        yield
    except ImportError as error:
        raise SettingsInvalid(
            f"a {extra} server is named and its driver is not installed: "
            f"pip install 'unrewind[{extra}]' ({error})"
        ) from None


def stand_together(store: SqlStore | None, log: SqlLog | None) -> bool:
    """Whether both stand on one server, or on a server and its standby."""
    if store is None or log is None:
        return False
    if {store.facts().get("engine"), log.facts().get("engine")} != {"postgresql"}:
        return False
    from journal.postgres.checks import same_server  # noqa: PLC0415 - see above

    return same_server(store.database, log.database)


def check_apart(store: SqlStore | None, log: SqlLog | None, accept: Sequence[str]) -> None:
    """Refuse store and journal on one server: they are rewound together. Raises SettingsInvalid."""
    if SAME not in accept and stand_together(store, log):
        label = "" if store is None else store.database.label
        raise SettingsInvalid(
            f"store and journal are on one server ({label}), or on a server and "
            "its standby: a rewind takes both back. Put the journal on another one, or accept it "
            f'by name: accept = ["{SAME}"]'
        )


def masked(url: str) -> str:
    """A server's URL without its password and its parameters.

    What cannot be told from a secret is left out: a password may hold what parts hosts.
    """
    scheme, _, rest = url.partition("://")
    authority, slash, path = rest.partition("/")
    if scheme.lower() in POSTGRES:
        user, at, servers = authority.rpartition("@")
        name = user.partition(":")[0]
        database = path.partition("?")[0]
        return f"{scheme}://{name}{at}{servers.partition('?')[0]}{slash}{database}"
    hosts = [_masked_host(host) for host in authority.partition("?")[0].split(",")]
    return f"{scheme}://{','.join(hosts)}"


def _masked_host(host: str) -> str:
    """One of NATS's hosts; a name alone before it is a token."""
    user, _, address = host.rpartition("@")
    name, password, _ = user.partition(":")
    _, colon, port = address.partition(":")
    if colon and not port.isdigit():
        return "..."  # a piece of a password that holds a comma
    return f"{name}@{address}" if password else address


def place_of_store(settings: Settings) -> StorePlace:
    """Where the settings' tenant has its store. Raises SettingsInvalid for an unknown engine."""
    scheme = scheme_of(settings.store)
    if scheme is None or settings.store is None:
        return StoreFile(settings.store_file)
    if scheme in POSTGRES:
        return StoreServer(settings.store, settings.tenant, settings.accept)
    raise SettingsInvalid(f"store: {scheme}:// is no store engine; take a directory or postgresql:")


def place_of_log(settings: Settings) -> LogPlace:
    """Where the settings' tenant has its journal. Raises SettingsInvalid for an unknown engine."""
    scheme = scheme_of(settings.journal)
    if scheme is None or settings.journal is None:
        return LogFile(settings.journal_file)
    if scheme in POSTGRES:
        return LogServer(settings.journal, settings.tenant, settings.accept)
    if scheme == NATS:
        copy = settings.home / "copies" / f"{settings.tenant}.db"
        return LogStream(settings.journal, settings.tenant, copy, settings.accept)
    raise SettingsInvalid(
        f"journal: {scheme}:// is no journal engine; take a directory, postgresql: or nats:"
    )


def lock_of(settings: Settings) -> Lock:
    """The turn lock: the operating system's, or the store server's where no file is shared."""
    if scheme_of(settings.store) in POSTGRES and scheme_of(settings.journal) is not None:
        with _driver("postgres"):
            from journal.postgres.lock import ServerLock  # noqa: PLC0415 - see above

        return ServerLock(settings.store or "", settings.tenant, settings.lock_timeout)
    return TurnLock(settings.beside("lock"), settings.lock_timeout)


@contextmanager
def recovering_alone(settings: Settings) -> Iterator[None]:
    """Keep recoveries from other machines out, where store and journal are on servers.

    Each server of PostgreSQL that answers is asked: the store's may be the one that is gone. Raises
    Refused while a recovery from elsewhere is at work.
    """
    if scheme_of(settings.store) is None or scheme_of(settings.journal) is None:
        yield
        return
    with ExitStack() as stack:
        for url, of_store in ((settings.journal, False), (settings.store, True)):
            if url is not None and scheme_of(url) in POSTGRES:
                with _driver("postgres"):
                    from journal.postgres import recovering  # noqa: PLC0415 - see above

                lock = recovering.recovering_alone(url, settings.tenant, of_store=of_store)
                stack.enter_context(lock)
        yield


def file_of(place: StorePlace | LogPlace, what: str) -> Path:
    """The file of an embedded engine. Raises Refused where there is none, naming ``what`` for."""
    if place.file is None:
        raise Refused(f"{what} needs an embedded database, and this one is {place.label}")
    return place.file
