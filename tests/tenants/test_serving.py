"""Many tenants in one server: each by itself, whatever becomes of the others."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from api import registering
from api.opening import deciding, writing
from api.registering import view
from journal.errors import UnrewindError
from journal.record import Record
from journal.worker import drive
from journal.writepath import settle, turn
from tests.api.servers import Reply
from tests.support.tenants import accepted, operation
from tests.tenants.many import HANDLED, Service, place

ROUNDS = {"UNREWIND_TENANTS_EVERY": "0.1", "UNREWIND_DISPATCH_EVERY": "0.05"}


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    """A service that is not started yet; ended, and told of no unforeseen failure, at the end."""
    made = Service(tmp_path / "service", **ROUNDS)
    try:
        yield made
    finally:
        assert made.end() == 0
    assert "Traceback" not in made.errors, made.errors


def shown(reply: Reply) -> tuple[int, dict[str, Any], Any]:
    """What an answer tells, but for the path that was asked for."""
    told = reply.json
    told.pop("instance", None)
    left_out = {"date", "content-length"}
    headers = {name: value for name, value in reply.headers.items() if name not in left_out}
    return reply.status, headers, told


def test_tokens_of_one_tenant_are_refused_at_another(service: Service) -> None:
    for name in ("one", "two"):
        service.create(name)
    service.start()
    everybody = {"main": service.token, **service.tokens}
    for name in everybody:
        for owner, token in everybody.items():
            reply = service.ask(name, "status", token)
            assert reply.status == (200 if owner == name else 401), (name, owner)
            if owner == name:
                assert reply.json["tenant"] == name
    for name in ("one", "two"):
        assert service.note(name, "op-1").status == 201
        assert service.note(name, "op-1").json["status_url"] == f"/v1/{name}/operations/op-1"
    assert service.get("operations").json["items"] == []
    reader = service.send("one", "tokens", {"role": "reader", "name": "r"}).json["token"]
    assert service.ask("one", "status", reader).status == 200
    assert service.send("one", "decisions", {}, reader).status == 403
    assert service.ask("two", "status", reader).status == 401


@pytest.mark.parametrize("presented", ["", "Bearer x", "Basic x", "Bearer unr_0123_secret"])
@pytest.mark.parametrize("path", ["status", "decisions", "tenants", "no-such-path", "tokens/a/b"])
def test_a_tenant_that_there_is_none_of_answers_as_one_that_does_not_know_the_caller(
    shared: Service, presented: str, path: str
) -> None:
    headers: dict[str, str | bytes] = {"Authorization": presented} if presented else {}
    for method in ("GET", "PUT"):
        there, nowhere = (
            shown(shared.request(method, f"/v1/{name}/{path}", headers=headers, token=""))
            for name in ("one", "nobody")
        )
        told = str(there).replace("/v1/one/", "/v1/nobody/")
        assert told == str(nowhere)
    names = ("No-Name", "..%2f..%2fetc", "main%00", "x" * 65, "tenants.json")
    for name in names:
        reply = shared.request("GET", f"/v1/{name}/status", headers=headers, token="")
        assert reply.status == 401, name


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    made = Service(tmp_path_factory.mktemp("shared") / "service")
    made.create("one")
    made.start()
    try:
        yield made
    finally:
        assert made.end() == 0


def test_a_caller_without_a_token_opens_no_tenant(shared: Service) -> None:
    opened = shared.metric("unrewind_tenants_opened_total")
    for token in ("unr_0123_secret", shared.token):
        assert shared.ask("one", "status", token).status == 401
    assert shared.metric("unrewind_tenants_opened_total") == opened
    assert shared.ask("one", "status").status == 200
    assert shared.metric("unrewind_tenants_opened_total") == opened + 1


def test_operators_of_the_services_own_tenant_list_create_and_close(service: Service) -> None:
    service.start()
    made = service.post("tenants", {"name": "acme"})
    assert made.status == 201, made.body
    service.tokens["acme"] = made.json["token"]
    assert service.post("tenants", {"name": "acme"}).status == 409
    assert service.post("tenants", {"name": "No Name"}).status == 400
    assert service.post("tenants", {"name": "b", "store": "there"}).status == 400
    assert service.note("acme", "op-1").status == 201
    page = service.get("tenants").json
    assert [(one["tenant"], one["own"], one["stage"], one["open"]) for one in page["items"]] == [
        ("main", True, "open", True),
        ("acme", False, "open", True),
    ]
    assert (page["registered"], page["open"]) == (2, 2)
    first = service.get("tenants?limit=1").json
    assert (first["next"], len(first["items"])) == ("main", 1)
    assert [one["tenant"] for one in service.get("tenants?after=main").json["items"]] == ["acme"]
    for path in ("tenants", "tenants/acme"):
        assert service.ask("acme", path).status == 403
    assert service.send("acme", "tenants", {"name": "b"}).status == 403
    assert service.get("tenants/nobody").status == 404
    assert service.post("tenants/acme/close", {"reason": " "}).status == 400
    assert service.post("tenants/nobody/close", {"reason": "x"}).status == 404
    closed = service.post("tenants/acme/close", {"reason": "it ended"})
    assert (closed.status, closed.json["stage"]) == (200, "closed")
    refused = service.note("acme", "op-2")
    assert (refused.status, refused.json["type"]) == (503, "/problems/recovering")
    assert service.ask("acme", "status").json["stage"] == "closed"
    reopened = service.send("acme", "recovery/reopen", {})
    assert reopened.status == 200, reopened.body
    assert service.note("acme", "op-2").status == 201
    assert service.decide("op-1", "case/1", "note").status == 201


def decide(service: Service, name: str, *wanted: str) -> None:
    """Decide without the server."""
    with deciding(service.of(name), create=False) as record:
        for each in wanted:
            accepted(drive(turn(record, [operation("case/1", "note", id=each)]))[0])


def rewind(service: Service, name: str) -> None:
    """Put an older store in place of the one that is there."""
    settings = service.of(name)
    with writing(settings) as record:
        drive(settle(record))
        assert record.store is not None
        record.store.copy_to(service.folder / "older.db")
    decide(service, name, "op-lost")
    for suffix in ("-wal", "-shm"):
        settings.store_file.with_name(settings.store_file.name + suffix).unlink(missing_ok=True)
    shutil.move(service.folder / "older.db", settings.store_file)


def test_p8_a_tenant_that_is_rewound_damaged_stopped_or_gone_changes_nothing_for_the_others(
    service: Service,
) -> None:
    sick = ("rewound", "damaged", "gone", "stopped", "torn")
    for name in ("well", *sick, "wild"):
        service.create(name)
        decide(service, name, "op-1")
    rewind(service, "rewound")
    service.of("damaged").store_file.write_bytes(b"no database" * 1000)
    service.of("damaged").journal_file.write_bytes(b"no database" * 1000)
    service.of("gone").store_file.unlink()
    service.of("gone").journal_file.unlink()
    registering.registry_of(service.settings).path("torn").write_bytes(b"{")
    drive(_stop(service, "stopped"))
    service.start()
    service.wait_for(lambda: service.metric("unrewind_tenants_unsound") == 4)
    for number in range(3):
        assert service.note("well", f"op-w{number}").status == 201
        assert service.decide(f"op-m{number}", "case/1", "note").status == 201
        for name in sick:
            assert service.note(name, f"op-s{number}").status in {401, 503}, name
    status = service.ask("rewound", "status").json
    assert (status["stage"], status["verdict"]) == ("closed", "rewound")
    assert service.ask("well", "status").json["stage"] == "open"
    for name in ("rewound", "damaged", "gone", "torn"):
        assert f"alert: tenant-closed: tenant {name}: " in service.errors
    assert "tenant well:" not in service.errors
    text = service.request("GET", "/metrics").body.decode()
    assert 'unrewind_tenant_unsound{tenant="rewound",verdict="rewound"} 1.0' in text
    assert service.request("GET", "/health/ready", token="").status == 200
    assert service.end() == 0
    service.whole("well", "wild")


async def _stop(service: Service, name: str) -> None:
    record = Record(service.of(name))
    record.stop.put_up("a test", record.clock.now())


def test_lru_under_load_loses_nothing(tmp_path: Path) -> None:
    service = Service(tmp_path / "service", UNREWIND_TENANTS_OPEN="3", **ROUNDS)
    names = [f"t{number}" for number in range(9)]
    for name in names:
        service.create(name)
    service.start()
    kept: dict[str, list[str]] = {name: [] for name in names}
    failed: list[Any] = []

    def call(worker: int) -> None:
        for number in range(18):
            name = names[(number * 4 + worker) % len(names)]
            identity = f"op-{worker}-{number}"
            reply = service.note(name, identity, f"case/{worker}")
            if reply.status == 201:
                kept[name].append(identity)
            else:
                failed.append((name, reply.status, reply.body))

    workers = [threading.Thread(target=call, args=(number,)) for number in range(6)]
    try:
        for worker in workers:
            worker.start()
        most = 0.0
        while any(worker.is_alive() for worker in workers):
            most = max(most, service.metric("unrewind_tenants_open"))
        for worker in workers:
            worker.join()
        assert failed == []
        assert most <= 3
        assert service.metric("unrewind_tenants_closed_total") > 9
        for name in names:
            items = service.ask(name, "operations?limit=1000").json["items"]
            assert {item["operation"] for item in items} == set(kept[name])
    finally:
        assert service.end() == 0
    assert "Traceback" not in service.errors
    service.whole(*names)


def test_when_every_open_tenant_is_at_work_a_further_one_is_told_to_wait(tmp_path: Path) -> None:
    service = Service(tmp_path / "service", UNREWIND_TENANTS_OPEN="1", **ROUNDS)
    for name in ("one", "two"):
        service.create(name)
    service.start()
    try:
        with _held(service, "one"):
            reply = service.note("two", "op-1")
            assert (reply.status, reply.json["type"]) == (429, "/problems/overloaded")
            assert int(reply.headers["retry-after"]) > 0
        service.wait_for(lambda: service.note("two", "op-1").status in {200, 201})
    finally:
        assert service.end() == 0


class _held:  # noqa: N801 - reads as a function where it is used
    """A request whose body does not come to its end: its tenant is in use."""

    def __init__(self, service: Service, name: str) -> None:
        import socket

        self._socket = socket.create_connection(("127.0.0.1", service.port))
        head = (
            f"POST /v1/{name}/decisions HTTP/1.1\r\nhost: x\r\n"
            f"authorization: Bearer {service.tokens[name]}\r\n"
            "content-type: application/json\r\ncontent-length: 10\r\n\r\n{"
        )
        self._socket.sendall(head.encode())
        self._service = service

    def __enter__(self) -> None:
        service = self._service
        service.wait_for(lambda: service.metric("unrewind_tenants_open") == 1)

    def __exit__(self, *_: object) -> None:
        self._socket.close()


def test_work_that_is_due_in_a_tenant_that_nobody_calls_is_done(tmp_path: Path) -> None:
    traces = tmp_path / "traces"
    traces.mkdir()
    service = Service(
        tmp_path / "service",
        HANDLED,
        UNREWIND_TENANTS_OPEN="2",
        TRACES=str(traces),
        **ROUNDS,
    )
    names = [f"t{number}" for number in range(5)]
    wanted: set[str] = set()
    for name in names:
        service.create(name)
        with deciding(service.of(name), create=False) as record:
            answer = accepted(drive(turn(record, [operation("parcel/1", "pack")]))[0])
        wanted |= set(answer.commands)
    assert len(wanted) == len(names)
    service.start()
    try:
        service.wait_for(lambda: {path.name for path in traces.iterdir()} == wanted)
        service.wait_for(lambda: service.metric("unrewind_tenants_round_opened") == 0)
    finally:
        assert service.end() == 0
    assert "Traceback" not in service.errors
    service.whole(*names)


@pytest.mark.parametrize("opened", [False, True], ids=["not open", "open"])
def test_p8_a_store_that_is_put_back_beside_a_server_that_nobody_calls_is_noticed(
    service: Service, opened: bool
) -> None:
    service.create("one")
    service.start()
    if opened:
        assert service.note("one", "op-1").status == 201
    service.wait_for(lambda: service.metric("unrewind_tenants_visited_total") > 1)
    rewind(service, "one")
    service.wait_for(lambda: service.metric("unrewind_tenants_unsound") == 1)
    assert view(service.settings, "one").stage == "closed"
    assert service.note("one", "op-2").status == 503


def test_a_tenant_that_is_created_beside_a_running_server_is_served(service: Service) -> None:
    service.start()
    service.create("late")
    assert service.note("late", "op-1").status == 201


def test_a_tenant_that_moves_under_a_running_server_goes_on_where_it_went(
    service: Service, tmp_path: Path
) -> None:
    service.create("one")
    service.start()
    assert service.note("one", "op-1").status == 201
    there = place(tmp_path / "there")
    done = service.command(
        *("move", "--tenant", "one", "--store", str(there.store), "--journal", str(there.journal))
    )
    assert done.returncode == 0, done.stderr
    service.wait_for(lambda: service.note("one", "op-2").status in {200, 201})
    status = service.ask("one", "status").json
    assert (status["stage"], status["generation"]) == ("open", 3)
    items = service.ask("one", "operations").json["items"]
    assert [item["operation"] for item in items] == ["op-1", "op-2"]
    assert service.of("one").store_file.is_relative_to(tmp_path / "there")
    with pytest.raises(UnrewindError, match="moved to"):
        drive(_control_at_the_old_place(service))
    assert service.end() == 0
    service.whole("one")


async def _control_at_the_old_place(service: Service) -> None:
    import msgspec

    old = msgspec.structs.replace(service.of("one"), store=None, journal=None)
    record = Record(old, read_only=True)
    try:
        await record.open()
        await record.read_control()
    finally:
        await record.close()
