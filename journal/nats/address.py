"""Where the servers are and how to prove who we are, from a `nats://` URL and the environment.

    nats://user:password@n1:4222,n2:4222,n3:4222?monitor=http://n1:8222,http://n2:8222

The parameters are ``monitor``, ``creds`` (a credentials file), ``ca``, ``cert`` and ``key``; scheme
`tls` asks for TLS. A lone user name is a token. What the URL leaves out is taken from the variables
that the `nats` command reads: NATS_USER, NATS_PASSWORD, NATS_TOKEN, NATS_CREDS, NATS_CA, NATS_CERT,
NATS_KEY. No secret is in ``label`` or ``servers``.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qs, unquote

from msgspec import Struct

from journal.errors import SettingsInvalid

_SCHEMES = frozenset({"nats", "tls"})
_PARAMETERS = ("monitor", "creds", "ca", "cert", "key")
_MONITORS = ("http://", "https://")


class Address(Struct, frozen=True):
    """Servers, their monitoring endpoints, and what identifies us to them."""

    servers: tuple[str, ...]
    monitors: tuple[str, ...] = ()
    user: str | None = None
    password: str | None = None
    token: str | None = None
    creds: str | None = None
    ca: str | None = None
    cert: str | None = None
    key: str | None = None
    encrypted: bool = False

    @property
    def label(self) -> str:
        """The servers as messages name them."""
        return "nats://" + ",".join(server.partition("://")[2] for server in self.servers)

    def options(self) -> dict[str, Any]:
        """What the client is told besides the servers. Raises SettingsInvalid."""
        options: dict[str, Any] = {}
        if self.creds is not None:
            options["user_credentials"] = self.creds
        elif self.token is not None:
            options["token"] = self.token
        elif self.user is not None:
            options |= {"user": self.user, "password": self.password or ""}
        if self.encrypted or self.ca is not None or self.cert is not None:
            options["tls"] = self._tls()
        return options

    def _tls(self) -> ssl.SSLContext:
        try:
            context = ssl.create_default_context(cafile=self.ca)
            if self.cert is not None:
                context.load_cert_chain(self.cert, self.key)
        except (OSError, ssl.SSLError) as error:
            raise SettingsInvalid(f"{self.label}: its TLS files cannot be used: {error}") from None
        return context


def address_of(url: str, environment: Mapping[str, str] = os.environ) -> Address:
    """Read a URL. Raises SettingsInvalid, without repeating what may be a secret."""
    scheme, _, rest = url.partition("://")
    where, _, query = rest.partition("?")
    if scheme not in _SCHEMES or not where.strip("/"):
        raise SettingsInvalid("a NATS journal is named nats://host:port, more hosts after commas")
    asked = parse_qs(query, keep_blank_values=True)
    unknown = sorted(set(asked) - set(_PARAMETERS))
    if unknown:
        raise SettingsInvalid(
            f"nats: there is no parameter {unknown[0]}; take one of {', '.join(_PARAMETERS)}"
        )
    servers, identity = [], None
    for host in where.rstrip("/").split(","):
        login, _, place = host.strip().rpartition("@")
        identity = identity or login or None
        servers.append(f"nats://{_with_port(place)}")
    user, password, token = _identity(identity, environment)
    files = {
        name: next(iter(asked.get(name, ())), "") or environment.get(f"NATS_{name.upper()}") or None
        for name in ("creds", "ca", "cert", "key")
    }
    monitors = [part.strip().rstrip("/") for part in ",".join(asked.get("monitor", ())).split(",")]
    for monitor in filter(None, monitors):
        if not monitor.startswith(_MONITORS):
            raise SettingsInvalid("nats: monitor is the http:// address of a server's monitoring")
    return Address(
        servers=tuple(servers),
        monitors=tuple(filter(None, monitors)),
        user=user,
        password=password,
        token=token,
        encrypted=scheme == "tls",
        **files,
    )


def _with_port(place: str) -> str:
    if not place:
        raise SettingsInvalid("nats: a host is missing between the commas of the URL")
    return place if ":" in place.rpartition("]")[2] else f"{place}:4222"


def _identity(
    login: str | None, environment: Mapping[str, str]
) -> tuple[str | None, str | None, str | None]:
    """User, password and token."""
    password = environment.get("NATS_PASSWORD") or None
    if login is None:
        return environment.get("NATS_USER") or None, password, environment.get("NATS_TOKEN") or None
    user, colon, secret = login.partition(":")
    if colon:
        return unquote(user), unquote(secret), None
    if password is not None:
        return unquote(user), password, None
    return None, None, unquote(user)
