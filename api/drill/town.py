"""What the drill's tenant is declared as: documents, parcels, contracts and their lanes."""

from __future__ import annotations

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


def configuration(data: str, receiver: str, safe_within: float, backlog_within: float) -> str:
    """The drill's `unrewind.toml`."""
    text = _CONFIG.format(data=data, receiver=receiver)
    return (
        f"{text}\n[objective]\nsafe_within = {safe_within:g}\nbacklog_within = {backlog_within:g}\n"
    )
