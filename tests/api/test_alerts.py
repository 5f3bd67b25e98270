"""Alerts: each kind comes to the log, the metrics and the webhook; once, until it is over."""

import asyncio
import contextlib
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from api import alerts as under_test
from api.alerts import Alerts, Kind
from api.watching import Watch
from journal import Settings
from journal.errors import JournalUnavailable, SettingsInvalid
from journal.settings import Alert
from tests.api.servers import Server
from tests.support import handlers
from tests.support.dispatching import SECONDS, Scene, handled, scene, settings_of
from tests.support.handlers import failures
from tests.support.webhooks import Hook, hooked
from tests.support.whole import verify_files

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"


@pytest.fixture
def hook() -> Iterator[Hook]:
    with hooked() as made:
        yield made


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    handlers.reset()
    monkeypatch.setenv("ALERT_SECRET", SECRET)
    monkeypatch.setattr(under_test, "FIRST_PAUSE", 0.01)


def settings_with(folder: Path, hook: Hook | None, **changes: Any) -> Settings:
    lanes = {
        "mail": handled("tests.support.handlers:plain", attempts=1),
        "slow": handled("tests.support.handlers:plain", tolerance=5.0, expected=10.0),
    }
    alert = Alert(hook.url, "ALERT_SECRET", 5.0) if hook is not None else Alert()
    return settings_of(folder, lanes, alert=alert, **changes)


async def arrived(tenant: Scene, hook: Hook, *kinds: str) -> None:
    """Exactly these alerts came, in this order."""
    await tenant.seen(lambda: len(hook.came) >= len(kinds))
    await tenant.alerts.close()
    assert hook.kinds == [*kinds]
    hook.verify(SECRET)


def told(caplog: pytest.LogCaptureFixture, kind: str) -> int:
    return sum(record.getMessage().startswith(f"alert: {kind}:") for record in caplog.records)


# Kinds.


async def test_dead_letters_are_told_when_there_are_more(
    tmp_path: Path, hook: Hook, caplog: pytest.LogCaptureFixture
) -> None:
    async with scene(settings_with(tmp_path, hook)) as tenant:
        watch = Watch(tenant.journal, tenant.alerts)
        await watch.look()
        failures.extend([ValueError("no")] * 3)
        first = await tenant.command("mail")
        await tenant.comes_to(first, "dead")
        for _ in range(3):
            await watch.look()
        await arrived(tenant, hook, "dead-letter")
        assert hook.alerts[0]["facts"] == {"lane": "mail", "dead": 1, "new": 1}
        for _ in range(2):
            await tenant.comes_to(await tenant.command("mail"), "dead")
        await watch.look()
        await arrived(tenant, hook, "dead-letter", "dead-letter")
        assert hook.alerts[1]["facts"] == {"lane": "mail", "dead": 3, "new": 2}
        await tenant.lanes.drain([first], "looked at")
        await watch.look()
        await tenant.alerts.close()
        assert told(caplog, "dead-letter") == len(hook.came) == 2
        assert tenant.alerts.raised["dead-letter"] == 2


async def test_a_lane_past_its_tolerance_is_told_once_until_it_is_not(
    tmp_path: Path, hook: Hook, caplog: pytest.LogCaptureFixture
) -> None:
    async with scene(settings_with(tmp_path, hook), runs=False) as tenant:
        watch = Watch(tenant.journal, tenant.alerts)
        # Four at a time in ten seconds each, and as many again would come meanwhile.
        made = [(f"item-{number}", b"{}") for number in range(2)]
        await tenant.lanes.enqueue("slow", "note", made)
        for _ in range(3):
            await watch.look()
        await arrived(tenant, hook, "lane-late")
        await tenant.start()
        for identity, _ in made:
            await tenant.comes_to(f"item_slow_{identity}", "done")
        await watch.look()
        assert "alert cleared: lane-late: slow" in caplog.text
        await tenant.stop()
        await tenant.lanes.enqueue("slow", "note", [("more-1", b"{}"), ("more-2", b"{}")])
        await watch.look()
        await arrived(tenant, hook, "lane-late", "lane-late")


async def test_l4_a_sweep_that_is_overdue_is_told_though_the_store_cannot_be_read(
    tmp_path: Path, hook: Hook, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = settings_with(tmp_path, hook, sweep_overdue=0.3)
    async with scene(settings, runs=False) as tenant:
        watch = Watch(tenant.journal, tenant.alerts)
        await tenant.lanes.sweep()
        await watch.look()
        assert tenant.alerts.raised["sweep-overdue"] == 0
        whole = tenant.journal.read

        async def broken(*_: object) -> None:
            raise JournalUnavailable("the disk is away")

        monkeypatch.setattr(tenant.journal.lanes, "_read", broken)

        async def raised() -> bool:
            with pytest.raises(JournalUnavailable):
                await watch.look()
            return tenant.alerts.raised["sweep-overdue"] > 0

        await tenant.until(raised)
        await raised()
        await arrived(tenant, hook, "sweep-overdue")
        monkeypatch.setattr(tenant.journal.lanes, "_read", whole)
        await tenant.lanes.sweep()
        await watch.look()
        assert not tenant.alerts._standing


async def test_a_tenant_that_is_never_swept_is_told_of(tmp_path: Path, hook: Hook) -> None:
    settings = settings_with(tmp_path, hook, sweep_overdue=0.1)
    async with scene(settings, runs=False) as tenant:
        watch = Watch(tenant.journal, tenant.alerts)

        async def raised() -> bool:
            await watch.look()
            return tenant.alerts.raised["sweep-overdue"] > 0

        await tenant.until(raised)
        await arrived(tenant, hook, "sweep-overdue")


async def test_a_result_that_cannot_be_stored_is_told_at_once_and_once(
    tmp_path: Path, hook: Hook, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with scene(settings_with(tmp_path, hook)) as tenant:
        report, down = tenant.lanes.report, asyncio.Event()
        tries = 0

        async def broken(*args: Any) -> Any:
            nonlocal tries
            tries += 1
            if not down.is_set():
                raise JournalUnavailable("the disk is full")
            return await report(*args)

        monkeypatch.setattr(tenant.lanes, "report", broken)
        command = await tenant.command("mail")
        await tenant.seen(lambda: tries >= 2)
        await arrived(tenant, hook, "result-not-stored")
        (alert,) = hook.alerts
        assert alert["facts"]["about"] == command
        assert "the disk is full" in alert["detail"]
        down.set()
        await tenant.comes_to(command, "done")
        await tenant.seen(lambda: not tenant.alerts._standing)


# The webhook.


def alone(hook: Hook, **changes: Any) -> Alerts:
    alert = Alert(hook.url, "ALERT_SECRET", 5.0)
    return Alerts(Settings(alert=msgspec.structs.replace(alert, **changes)))


async def test_a_test_alert_tells_which_places_it_reached(hook: Hook) -> None:
    alerts = alone(hook)
    assert await alerts.test() == ["log", "metric", "webhook"]
    hook.verify(SECRET)
    (alert,) = hook.alerts
    assert (alert["kind"], alert["tenant"], alert["instance"]) == ("test", "main", "default")
    hook.status = 500
    assert await alerts.test() == ["log", "metric"]
    assert alerts.raised["test"] == 2
    assert await Alerts(Settings()).test() == ["log", "metric"]


async def test_a_webhook_that_fails_is_tried_again_with_the_same_message(
    hook: Hook, monkeypatch: pytest.MonkeyPatch
) -> None:
    hook.status = 503
    alerts = alone(hook)
    task = alerts.raise_now(Kind.TEST, "first")
    assert task is not None
    assert not await task
    assert len(hook.came) == under_test.ATTEMPTS
    assert len({headers["webhook-id"] for headers, _ in hook.came}) == 1
    assert len({body for _, body in hook.came}) == 1
    hook.verify(SECRET)


async def test_a_webhook_that_redirects_is_not_followed(hook: Hook) -> None:
    hook.status = 307
    assert await alone(hook).test() == ["log", "metric"]
    assert len(hook.came) == under_test.ATTEMPTS


@pytest.mark.parametrize("webhook", ["http://127.0.0.1:9/", "http://[nowhere", "no-url"])
async def test_a_webhook_that_is_not_there_disturbs_nothing(
    webhook: str, hook: Hook, caplog: pytest.LogCaptureFixture
) -> None:
    alerts = alone(hook, webhook=webhook)
    assert await alerts.test() == ["log", "metric"]
    assert "the alert webhook failed" in caplog.text


async def test_a_webhook_that_hangs_is_given_up_at_the_end(
    hook: Hook, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR)
    hook.held.clear()
    alerts = alone(hook, timeout=0.2)
    task = alerts.raise_now(Kind.TEST, "nobody answers")
    assert task is not None
    await alerts.close()
    assert task.done()
    assert "a-secret" not in caplog.text


async def test_a_webhook_that_answers_for_ever_is_given_up(hook: Hook) -> None:
    ended = asyncio.Semaphore(0)

    async def trickle(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\n")
        with contextlib.suppress(OSError):
            while not writer.is_closing():
                writer.write(b"x-more: is coming\r\n")
                await writer.drain()
                await asyncio.sleep(0.01)
            writer.close()
            await writer.wait_closed()
        ended.release()

    async with await asyncio.start_server(trickle, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        alerts = alone(hook, webhook=f"http://127.0.0.1:{port}/", timeout=0.2)
        async with asyncio.timeout(SECONDS):
            assert await alerts.test() == ["log", "metric"]
            for _ in range(under_test.ATTEMPTS):
                await ended.acquire()


async def test_alerts_that_wait_for_the_webhook_are_limited(
    hook: Hook, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(under_test, "MOST_WAITING", 2)
    hook.held.clear()
    alerts = alone(hook, timeout=0.2)
    sent = [alerts.raise_now(Kind.TEST, "one of many") for _ in range(3)]
    assert [task is not None for task in sent] == [True, True, False]
    assert alerts.raised["test"] == 3
    assert "in the log alone" in caplog.text
    await alerts.close()


@pytest.mark.parametrize("value", [None, "not a secret"])
def test_a_secret_that_cannot_be_used_is_named_at_the_start(value: str | None, hook: Hook) -> None:
    settings = Settings(alert=Alert(hook.url, "HOOK_SECRET"))
    with pytest.raises(SettingsInvalid, match="HOOK_SECRET") as refused:
        Alerts(settings, {} if value is None else {"HOOK_SECRET": value})
    assert "not a secret" not in str(refused.value)


def test_an_operator_tries_the_alerts_over_http(tmp_path: Path, hook: Hook) -> None:
    server = Server(tmp_path / "server")
    with (server.folder / "unrewind.toml").open("a") as file:
        file.write(f'\n[alert]\nwebhook = "{hook.url}"\nsecret_env = "ALERT_SECRET"\n')
    server.environment["ALERT_SECRET"] = SECRET
    server.start()
    try:
        reply = server.post("alerts/test")
        assert (reply.status, reply.json) == (200, {"reached": ["log", "metric", "webhook"]})
        hook.verify(SECRET)
        assert hook.kinds == ["test"]
        writer = server.make_token("writer")
        assert server.post("alerts/test", token=writer).status == 403
        metrics = server.request("GET", "/metrics")
        assert 'unrewind_alerts_total{kind="test"} 1.0' in metrics.body.decode()
    finally:
        assert server.end() == 0
    assert "alert: test: this is a test" in server.errors
    assert verify_files(server.settings) == []
