"""Where the servers are, and who we are to them; no secret is ever shown."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from journal.errors import SettingsInvalid, Unreachable
from journal.nats.address import Address, address_of
from journal.nats.log import NatsLog
from tests.support.jetstream import NatsServer
from tests.support.servers import require_nats

ROOT = Path(__file__).resolve().parents[2]
SECRET = "hush-hush"


def test_hosts_monitors_and_parameters_are_read() -> None:
    found = address_of("nats://a,b:99,[::1]:3?monitor=http://a:8222,https://b/&ca=/ca.pem", {})
    assert found == Address(
        servers=("nats://a:4222", "nats://b:99", "nats://[::1]:3"),
        monitors=("http://a:8222", "https://b"),
        ca="/ca.pem",
    )
    assert found.label == "nats://a:4222,b:99,[::1]:3"
    assert address_of("tls://a", {}).encrypted
    assert "tls" in address_of("tls://a", {}).options()


@pytest.mark.parametrize(
    ("url", "environment", "options"),
    [
        ("nats://a", {}, {}),
        ("nats://me:h%40sh@a,b", {}, {"user": "me", "password": "h@sh"}),
        ("nats://me@a", {"NATS_PASSWORD": "p"}, {"user": "me", "password": "p"}),
        ("nats://word@a", {}, {"token": "word"}),
        ("nats://a", {"NATS_USER": "me", "NATS_PASSWORD": "p"}, {"user": "me", "password": "p"}),
        ("nats://a", {"NATS_TOKEN": "word"}, {"token": "word"}),
        ("nats://a?creds=/c", {"NATS_USER": "me"}, {"user_credentials": "/c"}),
        ("nats://a", {"NATS_CREDS": "/c"}, {"user_credentials": "/c"}),
    ],
)
def test_who_we_are(url: str, environment: dict[str, str], options: dict[str, str]) -> None:
    assert address_of(url, environment).options() == options


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("nats://", "nats://host:port"),
        ("http://a", "nats://host:port"),
        ("nats://a,,b", "a host is missing"),
        ("nats://a?monitors=http://b", "there is no parameter monitors; take one of monitor"),
        ("nats://a?monitor=b:8222", "monitor is the http:// address"),
        (f"nats://u:{SECRET}@a?x=1", "there is no parameter x"),
    ],
)
def test_a_url_that_makes_no_sense_is_told_what_to_be(url: str, says: str) -> None:
    with pytest.raises(SettingsInvalid) as caught:
        address_of(url, {})
    assert says in caught.value.detail
    assert SECRET not in caught.value.detail


def test_files_that_are_not_there_are_said() -> None:
    with pytest.raises(SettingsInvalid, match="TLS files cannot be used"):
        address_of("nats://a?ca=/nowhere", {}).options()


def test_servers_that_are_not_there_are_unreachable_at_once() -> None:
    for _ in range(2):
        with pytest.raises(Unreachable, match=r"127\.0\.0\.1:1,127\.0\.0\.1:2"):
            NatsLog.exists("nats://127.0.0.1:1,127.0.0.1:2", "main")


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate of our own, and its key."""
    folder = tmp_path_factory.mktemp("tls")
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"),
            *("-nodes", "-keyout", "key.pem", "-out", "cert.pem", "-days", "2"),
            *("-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"),
        ],
        cwd=folder,
        check=True,
        capture_output=True,
    )
    return folder


@pytest.fixture(scope="module")
def guarded(keys: Path) -> Iterator[NatsServer]:
    """A server that asks for a password, over TLS."""
    require_nats()
    made = NatsServer(start=False)
    with (made.folder / "nats.conf").open("a") as file:
        file.write(f'authorization {{ user: me, password: "{SECRET}" }}\n')
        file.write(f'tls {{ cert_file: "{keys}/cert.pem", key_file: "{keys}/key.pem" }}\n')
    made.start()
    yield made
    made.close()


@pytest.mark.engines
def test_a_password_and_a_certificate_let_in(guarded: NatsServer, keys: Path) -> None:
    where = f"127.0.0.1:{guarded.port}?ca={keys}/cert.pem"
    assert NatsLog.exists(f"nats://me:{SECRET}@{where}", "main") is False


@pytest.mark.engines
def test_a_wrong_password_is_said_without_it(guarded: NatsServer, keys: Path) -> None:
    where = f"127.0.0.1:{guarded.port}?ca={keys}/cert.pem"
    with pytest.raises(Unreachable, match=r"(?i)authorization") as caught:
        NatsLog.exists(f"nats://me:{SECRET}x@{where}", "main")
    assert SECRET not in caught.value.detail


@pytest.mark.engines
def test_a_certificate_that_nobody_vouches_for_is_refused(guarded: NatsServer) -> None:
    with pytest.raises(Unreachable, match=r"(?i)certificate"):
        NatsLog.exists(f"nats://me:{SECRET}@127.0.0.1:{guarded.port}", "main")


LEFT = """
import sys, threading
from journal.errors import Unreachable
from journal.nats.log import NatsLog
from journal.nats.wire import Wire
for url in sys.argv[1:]:
    try:
        NatsLog.exists(url, "main")
    except Unreachable:
        pass
    assert threading.active_count() == 1, threading.enumerate()
    assert all(door.wire is None for door in Wire._doors.values())
"""


@pytest.mark.engines
def test_nothing_is_left_of_a_connection_that_was_given_back(nats_server: NatsServer) -> None:
    urls = [nats_server.url, "nats://127.0.0.1:1", nats_server.url]
    subprocess.run([sys.executable, "-W", "error", "-c", LEFT, *urls], cwd=ROOT, check=True)
