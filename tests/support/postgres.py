"""Real PostgreSQL servers for tests: started, killed, cut off, filled up, restored, promoted."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Self

import psycopg

from tests.support.area import area, end_all

SECONDS = 60.0
_INSTALLED = "/usr/lib/postgresql"
_WIPE = """
DO $$ DECLARE name text; BEGIN
    FOR name IN SELECT nspname FROM pg_namespace
        WHERE nspname !~ '^pg_' AND nspname <> 'information_schema'
    LOOP EXECUTE format('DROP SCHEMA %I CASCADE', name); END LOOP;
    CREATE SCHEMA public;
END $$"""
# Durable as in production, small and quiet otherwise. The default collation is no byte order, so
# that a comparison which forgets to name one shows up.
_SETTINGS = {
    "listen_addresses": "'127.0.0.1'",
    "unix_socket_directories": "''",
    "fsync": "on",
    "synchronous_commit": "on",
    "full_page_writes": "on",
    "shared_buffers": "'16MB'",
    "max_connections": "120",
    "max_wal_senders": "4",
    "wal_keep_size": "'16MB'",
    "max_wal_size": "'512MB'",
    "checkpoint_timeout": "'30min'",
    "autovacuum": "off",
    "jit": "off",
    "log_line_prefix": "'%m [%p] %a '",
    "log_timezone": "'UTC'",
    "timezone": "'UTC'",
}
_READY = "ready"


def postgres_binaries() -> Path | None:
    """Where the server's programs are, the newest first; None when it is not installed."""
    found = shutil.which("initdb")
    if found is not None and shutil.which("postgres") is not None:
        return Path(found).resolve().parent
    installed = Path(_INSTALLED).glob("*/bin/initdb")
    versions = sorted(installed, key=lambda file: int(file.parts[-3].partition(".")[0]))
    return versions[-1].parent if versions else None


class PostgresServer:
    """A cluster in a folder of its own, on a port of 127.0.0.1 that it keeps.

    Made and started at once. Anybody on this machine may log in as anybody, unless a ``password``
    of the superuser is given. ``archive`` copies every finished WAL segment to ``self.archive``.
    ``small_disk`` puts the data or the WAL on a file system of this many megabytes.
    """

    def __init__(
        self,
        *,
        archive: bool = False,
        password: str | None = None,
        small_disk: tuple[str, int] | None = None,
        settings: dict[str, str] | None = None,
    ) -> None:
        self._begin("postgres", password)
        self.archive = self._folder("archive")
        more: list[str] = []
        if small_disk is not None:
            more = self._mount(*small_disk)
        if password is not None:
            secret = self.folder / "password"
            secret.write_text(password)
            self._give(secret)
            more += ["--auth=scram-sha-256", f"--pwfile={secret}"]
        self.tool(
            "initdb", f"--pgdata={self.data}", "--username=postgres", "--encoding=UTF8",
            "--locale=C", *_COLLATION, "--no-sync", "--no-instructions", "--auth=trust",
            "--wal-segsize=1" if archive or small_disk else "--wal-segsize=16", *more,
        )  # fmt: skip
        archiving = {
            "archive_mode": "on",
            "archive_command": f"'cp %p {self.archive}/%f.part"
            f" && mv {self.archive}/%f.part {self.archive}/%f'",
        }
        self.configure(
            port=str(self.port), **_SETTINGS, **(archiving if archive else {}), **(settings or {})
        )
        self.start()

    def _begin(self, name: str, password: str | None) -> None:
        binaries = postgres_binaries()
        assert binaries is not None, "PostgreSQL is not installed"
        self.binaries = binaries
        self.account = _account()
        self.folder = area().new_folder(name)
        self._give(self.folder)
        self.data = self.folder / "data"
        self.log = self.folder / "log"
        self.port = area().free_port()
        self.password = password
        self.process: subprocess.Popen[bytes] | None = None
        self.name = self.folder.name
        self._disk: Path | None = None
        self._made = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Where it is.

    def url(self, database: str = "postgres", user: str = "postgres") -> str:
        """What a client connects to; the superuser's has the password in it, if there is one."""
        secret = f":{self.password}" if self.password and user == "postgres" else ""
        return f"postgresql://{user}{secret}@127.0.0.1:{self.port}/{database}"

    def connect(self, database: str = "postgres", **options: Any) -> psycopg.Connection[Any]:
        return psycopg.connect(self.url(database), **{"autocommit": True, **options})

    def query(self, sql: str, *parameters: Any, database: str = "postgres") -> list[Any]:
        """Run one statement as the superuser; its rows, if it has any."""
        with self.connect(database) as connection:
            done = connection.execute(sql, parameters or None)
            return done.fetchall() if done.description else []

    def create_database(self, name: str | None = None) -> str:
        """A new, empty database; its URL."""
        if name is None:
            self._made += 1
            name = f"test_{self._made}"
        self.query(f'CREATE DATABASE "{name}"')
        return self.url(name)

    def wipe_database(self, name: str) -> None:
        """Empty a database, whoever is connected to it. Dropping one takes a checkpoint."""
        self.cut_connections(name)
        self.query(f'ALTER DATABASE "{name}" RESET ALL')
        self.query(_WIPE, database=name)

    def configure(self, **settings: str) -> None:
        """Settings as the configuration file has them; they hold from the next start or reload."""
        lines = "".join(f"{name} = {value}\n" for name, value in settings.items())
        with (self.data / "postgresql.conf").open("a") as file:
            file.write(lines)

    def reload(self) -> None:
        self.query("SELECT pg_reload_conf()")

    # Its life.

    @property
    def alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def start(self, *, wait: bool = True) -> None:
        """Start it, and wait until it takes connections."""
        assert not self.alive
        with self.log.open("ab") as log:
            self.process = self._popen(
                [str(self.binaries / "postgres"), "-D", str(self.data)],
                cwd=self.data,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        area().started(self.process)
        if wait:
            self.wait_until_ready()

    def wait_until_ready(self) -> None:
        assert self.process is not None
        _until("PostgreSQL is ready", self._is_ready)

    def stop(self, how: str = "fast") -> None:
        """Stop it: `smart`, `fast` (cuts connections) or `immediate` (no shutdown at all)."""
        signals = {"smart": signal.SIGTERM, "fast": signal.SIGINT, "immediate": signal.SIGQUIT}
        if self.process is not None:
            self.process.send_signal(signals[how])
            self.process.wait(SECONDS)
            end_all(self.data)

    def kill9(self) -> None:
        """Kill the server and every process of it; what the system has been given stays."""
        if self.process is not None:
            self.process.kill()
            self.process.wait(SECONDS)
            end_all(self.data)

    def restart(self, how: str = "fast") -> None:
        self.stop(how)
        self.start()

    def cut_connections(self, database: str | None = None) -> int:
        """End the connections of all clients, or of one database's, and wait; how many it were."""
        cut = self.query(
            "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity"
            " WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
            " AND (datname = %s OR %s::text IS NULL)",
            database,
            database,
        )
        return len(cut)

    def close(self) -> None:
        """End it and remove its files."""
        self.kill9()
        if self._disk is not None:
            subprocess.run(["umount", "--lazy", self._disk], check=True)
        shutil.rmtree(self.folder, ignore_errors=True)

    # Going back in time.

    def base_backup(self) -> Path:
        """A base backup of the running server, from which `restore_to` can start."""
        backup = self._next("base")
        self.tool(
            "pg_basebackup", f"--pgdata={backup}", f"--dbname={self.url()}",
            "--checkpoint=fast", "--wal-method=fetch", "--no-sync",
        )  # fmt: skip
        return backup

    def restore_point(self, name: str) -> None:
        """Name this moment."""
        self.query("SELECT pg_create_restore_point(%s)", name)

    def now(self) -> datetime:
        """The server's clock: a time to which it can be restored."""
        moment: datetime = self.query("SELECT clock_timestamp()")[0][0]
        return moment

    def finish_segment(self) -> None:
        """Wait until everything written so far is in the archive."""
        [(last,)] = self.query("SELECT pg_walfile_name(pg_switch_wal())")
        _until("the last segment is archived", (self.archive / str(last)).exists)

    def restore_to(self, backup: Path, when: datetime | str) -> Path:
        """A point-in-time recovery in place: stop, the base backup, then the archive up to a time
        or a named restore point; then open for writes, on a new timeline.

        What stood there before is moved aside; its path.
        """
        if self.alive:
            self.finish_segment()
            self.stop()
        aside = self._next("before")
        self.data.rename(aside)
        subprocess.run(["cp", "-a", str(backup), str(self.data)], check=True)
        target = "recovery_target_time" if isinstance(when, datetime) else "recovery_target_name"
        self.configure(
            restore_command=f"'cp {self.archive}/%f %p'",
            recovery_target_action="'promote'",
            **{target: f"'{when}'"},
        )
        marker = self.data / "recovery.signal"
        marker.touch()
        self._give(marker)
        self.start()
        _until("the recovery has ended", lambda: not self.is_standby)
        return aside

    # Standbys.

    @property
    def is_standby(self) -> bool:
        """Whether it is in recovery, and so takes no writes."""
        return bool(self.query("SELECT pg_is_in_recovery()")[0][0])

    def standby(self, *, synchronous: bool = False) -> PostgresServer:
        """A second server that follows this one; commits wait for a ``synchronous`` one."""
        made = object.__new__(PostgresServer)
        made._begin("standby", self.password)
        made.archive = made._folder("archive")
        # pg_basebackup writes the application's name into the standby's settings.
        source = f"{self.url()}?application_name={made.name}"
        self.tool(
            "pg_basebackup", f"--pgdata={made.data}", f"--dbname={source}", "--write-recovery-conf",
            "--checkpoint=fast", "--wal-method=stream", "--no-sync",
        )  # fmt: skip
        made.configure(port=str(made.port), archive_mode="off", synchronous_standby_names="''")
        made.start()
        wanted = "sync" if synchronous else "async"
        if synchronous:
            self.query(f"ALTER SYSTEM SET synchronous_standby_names = '\"{made.name}\"'")
            self.reload()
        _until(
            f"the standby is {wanted}",
            lambda: self.query(
                "SELECT 1 FROM pg_stat_replication WHERE application_name = %s"
                " AND state = 'streaming' AND sync_state = %s",
                made.name,
                wanted,
            ),
        )
        return made

    def detach(self) -> None:
        """Let a standby follow no longer: what its primary commits from now on it lacks."""
        self.query("ALTER SYSTEM SET primary_conninfo = ''")
        self.reload()
        _until("it follows nobody", lambda: not self.query("TABLE pg_stat_wal_receiver"))

    def promote(self) -> None:
        """End its following; from then on it takes writes, whatever the old primary does."""
        assert self.query("SELECT pg_promote()") == [(True,)]
        _until("it is promoted", lambda: not self.is_standby)

    # A full disk.

    def fill_disk(self) -> None:
        """Leave no byte free where the small disk is."""
        assert self._disk is not None
        with (self._disk / "ballast").open("wb", buffering=0) as ballast:
            for size in (1 << 20, 1 << 12, 1):
                try:
                    while True:
                        ballast.write(bytes(size))
                except OSError:
                    continue

    def free_disk(self) -> None:
        assert self._disk is not None
        (self._disk / "ballast").unlink()

    def _mount(self, what: str, megabytes: int) -> list[str]:
        """Mount the small disk; what tells initdb of it."""
        self._disk = disk = self._folder("disk")
        mounted = _mount(disk, megabytes)
        assert mounted is None, mounted
        self._give(disk)
        if what == "wal":
            return [f"--waldir={disk / 'wal'}"]
        self.data = disk / "data"
        return [f"--waldir={self.folder / 'wal'}"]

    # Beneath.

    def tool(self, name: str, *arguments: str) -> str:
        """Run one of the programs that come with the server; what it says."""
        process = self._popen(
            [str(self.binaries / name), *arguments],
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        said = process.communicate(timeout=SECONDS)[0].decode()
        assert process.returncode == 0, f"{name}: {said}"
        return said

    def said(self) -> str:
        """The server's log."""
        return self.log.read_text(errors="replace")

    def _popen(self, command: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
        """PostgreSQL refuses to run as root."""
        if self.account is not None:
            ids = {"user": self.account.pw_uid, "group": self.account.pw_gid}
            options = {**options, **ids, "extra_groups": []}
        environment = {name: value for name, value in os.environ.items() if name[:2] != "PG"}
        return subprocess.Popen(command, env={**environment, "LC_ALL": "C"}, **options)

    def _is_ready(self) -> bool:
        assert self.process is not None
        code = self.process.poll()
        assert code is None, f"PostgreSQL ended with {code}: {self.said()[-2000:]}"
        try:
            lines = (self.data / "postmaster.pid").read_text().splitlines()
        except FileNotFoundError:
            return False
        ours = len(lines) > 7 and int(lines[0]) == self.process.pid
        return ours and lines[7].strip() == _READY

    def _folder(self, name: str) -> Path:
        made = self.folder / name
        made.mkdir()
        self._give(made)
        return made

    def _next(self, name: str) -> Path:
        self._made += 1
        return self.folder / f"{name}-{self._made}"

    def _give(self, path: Path) -> None:
        if self.account is not None:
            os.chown(path, self.account.pw_uid, self.account.pw_gid)


_COLLATION = ("--locale-provider=icu", "--icu-locale=en")


def _account() -> pwd.struct_passwd | None:
    """The ordinary user as whom it runs, where this process is root."""
    if os.geteuid() != 0:
        return None
    names = {entry.pw_name: entry for entry in pwd.getpwall()}
    return names.get("postgres") or names["nobody"]


def cannot_mount() -> str | None:
    """Why no small disk can be mounted; None when it can."""
    probe = area().new_folder("probe")
    reason = _mount(probe, 1)
    if reason is None:
        subprocess.run(["umount", probe], check=True)
    return reason


def _mount(disk: Path, megabytes: int) -> str | None:
    """Mount a small file system; why not, if it cannot be."""
    command = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "none", str(disk)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    return None if done.returncode == 0 else f"cannot mount a small disk: {done.stderr.strip()}"


def _until(what: str, holds: Callable[[], Any]) -> None:
    deadline = time.monotonic() + SECONDS
    while not holds():
        assert time.monotonic() < deadline, f"not within {SECONDS:g} s: {what}"
        time.sleep(0.01)
