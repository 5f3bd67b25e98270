"""What docs/engines.md tells operators to write is taken by real servers."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path

import psycopg
import pytest

from journal.settings import WEAKER
from tests.soak.processes import ROOT
from tests.support.jetstream import nats_binary
from tests.support.servers import PostgresServer, require_nats

_TEXT = (ROOT / "docs" / "engines.md").read_text(encoding="utf-8")


def _blocks(language: str) -> list[str]:
    return re.findall(rf"^ *```{language}\n(.*?)^ *```", _TEXT, re.DOTALL | re.MULTILINE)


@pytest.mark.engines
def test_roles_and_databases_are_made_as_written(postgres_journals: PostgresServer) -> None:
    statements = [each.strip() for block in _blocks("sql") for each in block.split(";")]
    with psycopg.connect(postgres_journals.url(), autocommit=True) as client:
        for statement in filter(None, statements):
            client.execute(statement.encode())
        for made in ("DATABASE shop", "DATABASE journal"):
            client.execute(f"DROP {made}".encode())
        client.execute("DROP ROLE unrewind, unrewind_owner, unrewind_writer")


@pytest.mark.engines
def test_the_configuration_of_a_nats_server_is_one(tmp_path: Path) -> None:
    require_nats()
    (written,) = [block for block in _blocks("conf") if "jetstream" in block]
    file = tmp_path / "nats.conf"
    file.write_text(written)
    binary = nats_binary()
    assert binary is not None
    done = subprocess.run([binary, "-t", "-c", file], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_every_weaker_promise_is_told_and_no_other() -> None:
    (section,) = re.findall(
        r"^## What is checked at opening\n(.*?)^## ", _TEXT, re.DOTALL | re.MULTILINE
    )
    assert set(re.findall(r"^\| [^|]+ \| `([a-z-]+)` \|", section, re.MULTILINE)) == WEAKER
    for block in _blocks("toml"):
        assert set(tomllib.loads(block)["accept"]) <= WEAKER
