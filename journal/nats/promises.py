"""What a stream must promise before it is a journal, and how that is proven.

What nobody may accept (limits that drop messages, a stream that lets them be deleted, memory) is a
fault. What an operator may accept by name is *weaker*.
"""

from __future__ import annotations

import http.client
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct

from journal.nats.stream import Config, Info

SYNC = "nats-sync-interval"
SINGLE = "nats-single-server"
SMALLEST_MESSAGE = 16 * 1024
_SECONDS = 2.0
_LARGEST_ANSWER = 4 * 1024 * 1024


def settings_of(replicas: int) -> dict[str, Any]:
    """The settings with which a stream is made, beside its name and subject."""
    return {
        "retention": "limits",
        "storage": "file",
        "discard": "new",
        "num_replicas": replicas,
        "max_msgs": -1,
        "max_bytes": -1,
        "max_age": 0,
        "max_msgs_per_subject": -1,
        "max_msg_size": -1,
        "deny_delete": True,
        "deny_purge": True,
        "allow_rollup_hdrs": False,
        "allow_direct": True,
        "description": "unrewind: a journal. Never purge, edit or delete it",
    }


def faults_of(config: Config, subject: str) -> list[str]:
    """What keeps a stream from being a journal, whoever accepts what."""
    wrong = {
        f"its subject is not {subject}": config.subjects != [subject],
        "its storage is not file": config.storage != "file",
        "its retention is not limits": config.retention != "limits",
        "it discards old messages (discard is not new)": config.discard != "new",
        "it limits the number of messages (max_msgs)": config.max_msgs > 0,
        "it limits the bytes (max_bytes)": config.max_bytes > 0,
        "it limits the age of messages (max_age)": config.max_age > 0,
        "it limits messages by subject (max_msgs_per_subject)": config.max_msgs_per_subject > 0,
        "its max_msg_size is too small": 0 < config.max_msg_size < SMALLEST_MESSAGE,
        "messages can be deleted (deny_delete is off)": not config.deny_delete,
        "it can be purged (deny_purge is off)": not config.deny_purge,
        "messages can be rolled up (allow_rollup_hdrs)": config.allow_rollup_hdrs,
        "messages can expire one by one (allow_msg_ttl)": config.allow_msg_ttl,
        "it counts or schedules instead of keeping messages": config.allow_msg_counter
        or config.allow_msg_schedules,
        "it gives no direct gets (allow_direct is off)": not config.allow_direct,
        "it does not acknowledge (no_ack)": config.no_ack,
        "it is sealed": config.sealed,
        "it writes later (persist_mode is not default)": config.persist_mode not in {"", "default"},
        "it is a mirror, or takes messages from elsewhere": bool(
            config.mirror or config.sources or config.subject_transform
        ),
    }
    return [what for what, stands in wrong.items() if stands]


class _Settings(Struct, frozen=True):
    sync_interval: int = 0
    sync_always: bool = False


class _JetStream(Struct, frozen=True):
    config: _Settings | None = None


class Server(Struct, frozen=True):
    """What a server's monitoring says of it."""

    server_name: str
    version: str = ""
    jetstream: _JetStream | None = None

    @property
    def syncs(self) -> str:
        """How often it syncs, in words."""
        settings = None if self.jetstream is None else self.jetstream.config
        if settings is None:
            return "without JetStream"
        if settings.sync_always:
            return "always"
        return f"every {settings.sync_interval / 1e9:g} s"


_decode = msgspec.json.Decoder(Server).decode


def server_at(monitor: str) -> Server | None:
    """Ask a monitoring endpoint (`/varz`); None when it does not answer in time, or oddly."""
    try:
        parts = urlsplit(monitor)
        https = parts.scheme == "https"
        kind = http.client.HTTPSConnection if https else http.client.HTTPConnection
        connection = kind(parts.hostname or "", parts.port, timeout=_SECONDS)
        try:
            connection.request("GET", f"{parts.path}/varz")
            return _decode(connection.getresponse().read(_LARGEST_ANSWER))
        finally:
            connection.close()
    except (OSError, ValueError, http.client.HTTPException, msgspec.MsgspecError):
        return None


def weaker_of(info: Info, servers: Sequence[Server], replicas: int) -> dict[str, str]:
    """What the stream promises less, by the name under which it can be accepted.

    ``servers`` are those whose monitoring answered. Syncing is proven when all of them that hold
    the stream sync always, and they are a majority: an acknowledgement needs no more.
    """
    weaker: dict[str, str] = {}
    copies = info.config.num_replicas
    if copies < replicas:
        weaker[SINGLE] = f"the stream is kept {_times(copies)}, not {_times(replicas)}"
    told = {server.server_name: server.syncs for server in servers}
    holders = [name for name in info.servers() if name in told]
    lazy = [f"{name} syncs {told[name]}" for name in holders if told[name] != "always"]
    if lazy:
        weaker[SYNC] = (
            f"{'; '.join(lazy)}: a power failure can take acknowledged decisions; set "
            "sync_interval: always in its jetstream block"
        )
    elif len(holders) <= copies // 2:
        weaker[SYNC] = (
            f"sync_interval: always is proven of {len(holders)} of {copies} servers: name their "
            "monitoring in the URL, ?monitor=http://host:8222,http://…"
        )
    return weaker


def _times(number: int) -> str:
    return "once" if number == 1 else f"{number} times"
