"""Where a tenant's tables are: a server, a database, a schema."""

from __future__ import annotations

from hashlib import sha256

import psycopg
from msgspec import Struct
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from journal.errors import SettingsInvalid

STORE = "unrewind_"
JOURNAL = "unrewind_journal_"
_LONGEST = 63
"""Bytes of a name in PostgreSQL; what is longer is cut off there without a word."""
_DEFAULTS = {
    "connect_timeout": 5,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 20_000,
}
_SESSION = {
    "statement_timeout": 60_000,
    "lock_timeout": 10_000,
    "idle_in_transaction_session_timeout": 8_000,
    "default_transaction_isolation": "read\\ committed",
    "client_min_messages": "warning",
    "jit": "off",
}
"""In milliseconds. A process that hangs in a transaction is cut off before others stop waiting."""


class Where(Struct, frozen=True):
    """A schema of a server's database.

    ``conninfo`` may hold a password and is never shown; ``label`` is. ``key`` is the advisory lock
    of whoever writes there, ``turns`` that of the tenant's turns.
    """

    conninfo: str
    schema: str
    label: str
    key: int
    turns: int

    @property
    def quoted(self) -> str:
        """The schema as SQL names it."""
        return f'"{self.schema}"'

    def connecting(self, **session: str | int) -> str:
        """What a connection is made from, with settings for its session."""
        given = conninfo_to_dict(self.conninfo)
        settings = {**_SESSION, **session}
        options = " ".join(f"-c {name}={value}" for name, value in settings.items())
        # What the URL sets comes last and holds.
        return make_conninfo(self.conninfo, options=f"{options} {given.get('options') or ''}")


def schema_of(kind: str, tenant: str) -> str:
    """The schema of a tenant's store or journal: readable, and no other tenant's."""
    name = f"{kind}{tenant}"
    taken = kind == STORE and name.startswith(JOURNAL)
    if len(name) <= _LONGEST and not taken:
        return name
    return f"{kind}{tenant[:20]}_{sha256(tenant.encode()).hexdigest()[:20]}".replace(
        JOURNAL if taken else "", STORE + "store_" if taken else ""
    )


def where(url: str, kind: str, tenant: str) -> Where:
    """Where a tenant's store or journal is under a URL. Raises SettingsInvalid."""
    try:
        given = conninfo_to_dict(url)
    except (psycopg.Error, UnicodeEncodeError):
        raise SettingsInvalid(
            f"the URL of the {_NAMES[kind]} is none of PostgreSQL's: "
            "write postgresql://user@host:port/database"
        ) from None
    if given.get("target_session_attrs") == "read-write":
        raise SettingsInvalid(
            f"the URL of the {_NAMES[kind]}: target_session_attrs=read-write refuses sessions that "
            "only read, which unrewind has too; write target_session_attrs=primary"
        )
    defaults: dict[str, str | int | None] = {
        name: value for name, value in _DEFAULTS.items() if name not in given
    }
    defaults.setdefault("application_name", given.get("application_name") or f"unrewind {tenant}")
    schema = schema_of(kind, tenant)
    hosts = str(given.get("host") or given.get("hostaddr") or "localhost").split(",")
    ports = str(given.get("port") or "5432").split(",")
    ports += ports[-1:] * (len(hosts) - len(ports))
    places = ",".join(f"{host}:{port}" for host, port in zip(hosts, ports, strict=False))
    database = given.get("dbname") or given.get("user") or ""
    return Where(
        make_conninfo(url, **defaults),
        schema,
        f"postgresql://{places}/{database} schema {schema}",
        key_of(f"writers of {schema}"),
        key_of(f"turns of {schema}"),
    )


def key_of(name: str) -> int:
    """The advisory lock of this name, a signed 64-bit number."""
    return int.from_bytes(sha256(name.encode()).digest()[:8], "big", signed=True)


_NAMES = {STORE: "store", JOURNAL: "journal"}
