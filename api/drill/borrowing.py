"""Borrowing an operator's own data: copied, never opened for writing, and cut off from the world.

Data, configuration and the names of credentials go together into the drill's directory. Every
receiver becomes the isolated one, alerts go nowhere, and handlers are left out: their functions
would run for real.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from api.drill.copying import take_journal, take_store
from journal.errors import Refused
from journal.lanes import Contract
from journal.places import place_of_log, place_of_store
from journal.settings import Settings
from journal.sql import Stamp
from journal.sqlite import stamp_of
from reconstruct.evidence import files_of

_TRIES = 50
_PAUSE = 0.1
_PLACES = ("store", "journal", "witness", "evidence")
_SECRETS = ("secret_env", "callback_secret_env", "token_env")
_KEY = re.compile(r"[A-Za-z0-9_-]+")


def credentials(settings: Settings) -> dict[str, bool]:
    """The environment variables that the settings name, and whether each is set. No values."""
    named = {getattr(one, field) for one in settings.receiver.values() for field in _SECRETS}
    named.add(settings.alert.secret_env)
    return {name: name in os.environ for name in sorted(filter(None, named))}


def borrow(settings: Settings, folder: Path) -> None:
    """Copy store, journal and witness into a drill's data directory. Raises Refused.

    The store first: a journal that is newer than its store is what recoveries are made for.
    """
    store, journal = place_of_store(settings), place_of_log(settings)
    for kind, place in (("store", store), ("journal", journal)):
        (folder / kind).mkdir(parents=True)
        if place.file is not None:
            if not place.file.exists():
                raise Refused(f"there is no {kind} {place.file} to rehearse with")
            _copy(place.file, folder / kind)
    if store.file is None:
        take_store(store, folder / "store" / f"{settings.tenant}.db")
    if journal.file is None:
        take_journal(journal, folder / "journal" / f"{settings.tenant}.db", settings.tenant)
    if settings.witness_file.exists():
        (folder / "witness").mkdir()
        shutil.copyfile(settings.witness_file, folder / "witness" / settings.witness_file.name)


def _copy(database: Path, target: Path) -> None:
    """Copy a database with its -wal as of one moment, beside a live server or with none."""
    for _ in range(_TRIES):
        before = _stamps(database)
        for path in files_of(database):
            if not path.name.endswith("-shm"):
                shutil.copyfile(path, target / path.name)
        if _stamps(database) == before:
            return
        for path in target.iterdir():
            path.unlink()
        time.sleep(_PAUSE)
    raise Refused(
        f"{database} is written to all the time and cannot be copied as of one moment: rehearse "
        "with a copy of your backup (`unrewind snapshot`), or at a quieter hour"
    )


def _stamps(database: Path) -> list[Stamp | None]:
    return [stamp_of(database.with_name(database.name + suffix)) for suffix in ("", "-wal")]


def isolated(settings: Settings, data: Path, receiver: str) -> str:
    """The configuration of a drill over these settings. Raises Refused while anything leads out."""
    values: dict[str, Any] = msgspec.to_builtins(settings)
    values.update(data=str(data), host="127.0.0.1", dispatch=True)
    values["alert"] = {}
    values["accept"] = []
    for name, one in values["receiver"].items():
        once = one["contract"] == Contract.IDEMPOTENT
        one["url"] = f"{receiver}/{'once' if once else 'each'}/{name}"
        if one["status_url"] is not None:
            one["status_url"] = f"{receiver}/status/{{release}}"
        one.update(dict.fromkeys(_SECRETS))
    for one in values["lane"].values():
        one["handler"] = None
    for lifecycle in values["lifecycle"].values():
        for action in lifecycle["actions"].values():
            for command in action["commands"]:
                command["mode"] = "async"
    for name in _PLACES:
        values[name] = None
    leading_out = [text for text in _texts(values) if "://" in text and receiver not in text]
    if leading_out:
        raise Refused(f"the copy's configuration still leads out, to {leading_out[0]}")
    return (
        "# Written by `unrewind drill` from the settings of the data that it rehearses with.\n"
        + (toml(values))
    )


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for each in value.values():
            yield from _texts(each)
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _texts(each)


def toml(values: Mapping[str, Any], path: tuple[str, ...] = ()) -> str:
    """A mapping as TOML: scalars first, then its tables. What is None is left out."""
    lines = [f"[{'.'.join(map(_key, path))}]"] if path else []
    tables = []
    for name, value in values.items():
        if isinstance(value, Mapping):
            tables.append(toml(value, (*path, name)))
        elif value is not None:
            lines.append(f"{_key(name)} = {_value(value)}")
    return "\n".join(lines) + "\n" + "".join(tables)


def _key(name: str) -> str:
    return name if _KEY.fullmatch(name) else _value(name)


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        # JSON's strings are TOML's, but for one character.
        return json.dumps(value, ensure_ascii=True).replace("\x7f", "\\u007f")
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_value, value))}]"
    if isinstance(value, Mapping):
        inside = (f"{_key(k)} = {_value(v)}" for k, v in value.items() if v is not None)
        return f"{{{', '.join(inside)}}}"
    return repr(value)
