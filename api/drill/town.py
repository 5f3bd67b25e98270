"""What the drill's tenant is declared as: documents, parcels, contracts and their lanes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from uuid import uuid4

from msgspec import Struct

from api.drill.clearing import PREFIX
from journal.settings import Settings

PUSHED, PULLED, HOUSE = "post", "hand", "house"

_CONFIG = """\
# Written by `unrewind drill`.
data = "{data}"
instance = "drill"
owner = "the drill's operator"
resolve_within = 3600
dispatch_every = 0.2
sweep_every = 0.5
handoff_every = 0.5
detect_every = 5
lock_timeout = 15

[lifecycle.document]
initial = "draft"

[lifecycle.document.actions.submit]
from = ["draft"]
to = "submitted"

[lifecycle.document.actions.approve]
from = ["submitted"]
to = "approved"
needs_version = true
commands = [{{ name = "file", lane = "house" }}]

[lifecycle.document.actions.release]
from = ["approved"]
to = "approved"
needs_version = true
same_version = true
releases = ["post"]

[lifecycle.document.actions.cancel]
from = ["submitted", "approved"]
to = "cancelled"

[lifecycle.parcel]
initial = "new"

[lifecycle.parcel.actions.send]
from = ["new"]
to = "sent"
needs_version = true
releases = ["hand"]

[lifecycle.contract]
kind = "free"
owner = "caller"
withdrawn = ["cancelled"]

[receiver.post]
url = "{receiver}/releases"
status_url = "{receiver}/status/{{release}}"
contract = "queryable"
window = 86400
timeout = 10
works = 0.5
poll = 0.3
returns_digest = true

[lane.post]
receiver = "post"
concurrency = 8
lease = 12
sweep_after = 14
cap = 30
backoff = 0.1
backoff_cap = 0.3
owner = "the drill's postmaster"

[lane.hand]
timeout = 2
lease = 30
sweep_after = 40
cap = 60
owner = "the drill's messenger"

[lane.house]
effect = "internal"
timeout = 2
lease = 30
sweep_after = 40
cap = 60
owner = "the drill's clerk"
"""


SERVERS = ("store = ", "journal = ", "accept = ")
"""How the lines begin that say on which servers the tenant is."""


class Servers(Struct, frozen=True):
    """Where the drill's tenant is to be: a directory of the drill's own, unless a server is named.

    ``accept`` are the weaker promises of these servers that are accepted by name.
    """

    store: str | None = None
    journal: str | None = None
    accept: Sequence[str] = ()

    @property
    def named(self) -> bool:
        """Whether any is."""
        return self.store is not None or self.journal is not None


HERE = Servers()
"""On no server."""


def settings_of(data: str, servers: Servers) -> Settings:
    """Where the drill's tenant is. On a server it has a name that no other tenant has."""
    tenant = f"{PREFIX}{uuid4().hex[:12]}" if servers.named else "main"
    return Settings(
        data=data,
        tenant=tenant,
        store=servers.store,
        journal=servers.journal,
        accept=[*servers.accept],
    )


def configuration(where: Settings, receiver: str, safe_within: float, backlog_within: float) -> str:
    """The drill's `unrewind.toml`."""
    text = _CONFIG.format(data=where.data, receiver=receiver)
    for name in ("tenant", "store", "journal", "accept"):
        value = getattr(where, name)
        if value and value != "main":
            text = f"{name} = {json.dumps(value)}\n{text}"
    return (
        f"{text}\n[objective]\nsafe_within = {safe_within:g}\nbacklog_within = {backlog_within:g}\n"
    )
