"""Handlers: the application's own functions, run at least once, in order, and within limits."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from api import handlers as under_test
from api.dispatcher import Dispatcher
from journal.control import Running
from journal.errors import JournalUnavailable, SettingsInvalid
from journal.lanes import Effect, Lane
from journal.lifecycle import Action, Command, Lifecycle
from journal.outcomes import Outcome, Reported
from journal.permits import Asked
from journal.together import report_together
from tests.api.servers import Server
from tests.support import handlers
from tests.support.dispatching import Scene, handled, lane, receiver, scene, settings_of
from tests.support.handlers import failures, let_go, seen
from tests.support.whole import verify_files

HERE = "tests.support.handlers:"


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    handlers.reset()
    yield
    let_go.set()


def one_lane(folder: Path, handler: str, effect: Effect = Effect.INTERNAL, **changes: Any) -> Any:
    return settings_of(folder, {"mail": handled(HERE + handler, effect=effect, **changes)})


async def items(scene: Scene, *contents: bytes) -> list[str]:
    made = [(f"item-{number}", content) for number, content in enumerate(contents)]
    return await scene.lanes.enqueue("mail", "note", made)


# Running.


async def test_a_function_runs_in_a_thread_with_the_entitys_data(tmp_path: Path) -> None:
    async with scene(one_lane(tmp_path, "plain")) as tenant:
        command = await tenant.command("mail", {"to": "a@b"})
        row = await tenant.comes_to(command, "done")
        assert row.receipt == '{"data":{"to":"a@b"},"thread":"handler"}'
        assert (seen, row.attempts) == ([command], 1)


@pytest.mark.parametrize(
    ("handler", "said"), [("suspending", "did job"), ("OBJECT", "by an object")]
)
async def test_a_coroutine_function_runs_in_the_loop(
    tmp_path: Path, handler: str, said: str
) -> None:
    async with scene(one_lane(tmp_path, handler)) as tenant:
        row = await tenant.comes_to(await tenant.command("mail"), "done")
        assert row.receipt == said


async def test_best_effort_items_come_in_lists(tmp_path: Path) -> None:
    settings = one_lane(tmp_path, "batch", Effect.BEST_EFFORT, batch=3, concurrency=1)
    async with scene(settings, runs=False) as tenant:
        made = await items(tenant, *[b"{}"] * 7)
        await tenant.start()
        for identity in made:
            await tenant.comes_to(identity, "done")
        assert [len(batch) for batch in seen] == [3, 3, 1]
        assert [identity for batch in seen for identity in batch] == made


@pytest.mark.parametrize("fault", [None, JournalUnavailable("not now"), RuntimeError("a bug")])
async def test_what_became_of_a_list_is_kept_in_one_commit_or_else_one_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: Exception | None
) -> None:
    settings = one_lane(tmp_path, "batch", Effect.BEST_EFFORT, batch=9)
    async with scene(settings, runs=False) as tenant:
        write, report = tenant.journal.write, tenant.lanes.report
        single: list[Any] = []

        async def together(function: Any, *args: Any) -> Any:
            if fault is not None and function is report_together:
                raise fault
            return await write(function, *args)

        async def alone(*args: Any) -> Any:
            single.append(args)
            return await report(*args)

        monkeypatch.setattr(tenant.journal, "write", together)
        monkeypatch.setattr(tenant.lanes, "report", alone)
        made = await items(tenant, *[b"{}"] * 5)
        await tenant.start()
        rows = [await tenant.comes_to(identity, "done") for identity in made]
        assert [row.attempts for row in rows] == [1] * 5
        assert len(single) == (0 if fault is None else 5)


async def test_of_a_list_only_what_is_still_claimed_is_kept_together(tmp_path: Path) -> None:
    settings = one_lane(tmp_path, "batch", Effect.BEST_EFFORT, batch=9)
    async with scene(settings, runs=False) as tenant:
        made = await items(tenant, b"1", b"2", b"3")
        permits = (await tenant.lanes.claim(Asked("mail", "w", "claim-1", 9))).permits
        said = [Reported(one.id, Outcome.CONFIRMED, one.lease) for one in permits]
        await tenant.lanes.report(said[0])
        stale = msgspec.structs.replace(said[1], lease=permits[1].lease - 1)
        nobody = Reported("item_mail_none", Outcome.CONFIRMED, permits[0].lease)
        left = await tenant.journal.write(report_together, [said[0], stale, nobody, said[2]])
        assert left == [said[0], stale, nobody]
        assert [(await tenant.row(one)).status for one in made] == ["done", "running", "done"]


async def test_a_list_that_fails_is_run_again_as_items_of_their_own_budgets(
    tmp_path: Path,
) -> None:
    settings = one_lane(tmp_path, "batch", Effect.BEST_EFFORT, batch=3, concurrency=1)
    failures.append(ValueError("one of them"))
    async with scene(settings, runs=False) as tenant:
        made = await items(tenant, b"1", b"2")
        await tenant.start()
        rows = [await tenant.comes_to(identity, "done") for identity in made]
        assert [row.failures for row in rows] == [1, 1]


async def test_commands_of_one_action_run_in_their_order(tmp_path: Path) -> None:
    lanes = {"mail": handled(HERE + "plain"), "calls": handled(HERE + "suspending")}
    commands = tuple(
        Command(name, which)
        for name, which in (("one", "mail"), ("two", "calls"), ("three", "mail"))
    )
    both = Lifecycle(actions={"go": Action(("draft",), "draft", commands=commands)})
    settings = settings_of(tmp_path, lanes)
    settings.lifecycle["order"] = both
    failures.extend([OSError("not now")] * 2)
    async with scene(settings) as tenant:
        made = (await tenant.decide("go")).commands
        await tenant.comes_to(made[2], "done")
        # The first one failed twice, and the others waited for it.
        assert seen == [made[0], made[0], *made]


# Failing.


async def test_a_failure_is_retried_is_a_dead_letter_and_replayed_acts_once(
    tmp_path: Path,
) -> None:
    failures.extend([ValueError("no such address")] * 3)
    async with scene(one_lane(tmp_path, "plain", attempts=3)) as tenant:
        command = await tenant.command("mail")
        row = await tenant.comes_to(command, "dead")
        assert (row.failures, row.attempts) == (3, 3)
        assert row.last_error == "ValueError: no such address"
        await tenant.rests()
        assert seen == [command] * 3
        assert (await tenant.lanes.replay([command], "mended")).done == [command]
        left = (await tenant.lanes.replay([command], "mended")).left
        assert list(left) == [command]
        await tenant.comes_to(command, "done")
        assert list((await tenant.lanes.replay([command], "again")).left) == [command]
        await tenant.rests()
        assert seen == [command] * 4


@pytest.mark.parametrize(
    "fault",
    [
        SystemExit(3),
        KeyboardInterrupt(),
        StopIteration(1),
        TimeoutError("a socket's"),
        asyncio.CancelledError("its own"),
        BaseExceptionGroup("several", [KeyboardInterrupt()]),
    ],
    ids=lambda fault: type(fault).__name__,
)
@pytest.mark.parametrize("handler", ["plain", "suspending"])
async def test_whatever_a_handler_raises_is_its_failure_alone(
    tmp_path: Path, handler: str, fault: BaseException
) -> None:
    failures.append(fault)
    async with scene(one_lane(tmp_path, handler)) as tenant:
        row = await tenant.comes_to(await tenant.command("mail"), "done")
        assert (row.failures, row.attempts, row.expired) == (1, 2, 0)
        assert "it ran longer" not in str(row.last_error)
        assert row.last_error is not None


async def test_a_handler_that_hangs_has_failed_after_its_time(tmp_path: Path) -> None:
    settings = one_lane(tmp_path, "hanging", attempts=2, timeout=0.1, concurrency=1)
    async with scene(settings) as tenant:
        command = await tenant.command("mail")
        row = await tenant.comes_to(command, "dead")
        assert row.last_error == "it ran longer than 0.1 s"
        assert seen == [command] * 2


@pytest.mark.parametrize("handler", ["hanging", "stubborn"])
async def test_runs_that_hang_are_limited_and_the_rest_fails_visibly(
    tmp_path: Path, handler: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(under_test, "MAX_HANGING", 2)
    settings = one_lane(tmp_path, handler, attempts=4, timeout=0.05, concurrency=1)
    async with scene(settings) as tenant:
        command = await tenant.command("mail")
        row = await tenant.comes_to(command, "dead")
        assert "2 earlier runs of its handler hang" in str(row.last_error)
        assert seen == [command] * 2
        # Once they have ended, it runs again.
        let_go.set()
        (hung,) = [function.__self__ for function in acts(tenant.dispatcher)]
        await tenant.seen(lambda: not hung._hanging)
        await tenant.lanes.replay([command], "let go")
        await tenant.comes_to(command, "done")


def acts(dispatcher: Dispatcher) -> list[Any]:
    return [carrier._act for carrier in dispatcher._carriers.values()]


@pytest.mark.parametrize(
    ("handler", "said"),
    [
        ("tests.support.handlers", 'write it as "module:function"'),
        ("tests.support.handlers:none", "has no attribute"),
        ("tests.support.handlers:NOT_CALLABLE", "it is no function"),
        ("no_such_module:run", "PYTHONPATH"),
    ],
)
def test_a_handler_that_is_none_is_named_at_the_start(handler: str, said: str) -> None:
    with pytest.raises(SettingsInvalid, match=said):
        under_test.load_handlers({"mail": Lane(effect=Effect.INTERNAL, handler=handler)})


# Switched off.


async def test_a_lane_that_is_off_counts_what_it_discards(tmp_path: Path) -> None:
    async with scene(one_lane(tmp_path, "plain", Effect.BEST_EFFORT)) as tenant:
        await tenant.lanes.set_lane("mail", Running.OFF, "too many", discard=True)
        made = await items(tenant, b"1", b"2", b"3")
        await tenant.rests()
        assert {(await tenant.row(identity)).status for identity in made} == {"discarded"}
        (view,) = [one for one in await tenant.lanes.lanes() if one.lane == "mail"]
        assert view.counts["discarded"] == 3
        await tenant.lanes.set_lane("mail", Running.ON, "fewer")
        await tenant.lanes.enqueue("mail", "note", [("later", b"{}")])
        await tenant.comes_to("item_mail_later", "done")
        assert seen == ["item_mail_later"]


# In the request.


async def test_a_command_runs_now_and_says_what_became_of_it(tmp_path: Path) -> None:
    async with scene(one_lane(tmp_path, "suspending"), runs=False) as tenant:
        await tenant.dispatcher.start(loops=False)
        command = await tenant.command("sync-mail")
        (ran,) = await tenant.dispatcher.run_now([command])
        assert (ran.id, ran.kind, ran.lane) == (command, "job", "mail")
        assert (ran.status, ran.result, ran.error) == ("done", "did job", None)
        # Asked for again, it is not run again.
        assert await tenant.dispatcher.run_now([command]) == [ran]
        assert seen == [command]
        await tenant.dispatcher.stop()


async def test_a_command_that_fails_now_is_no_exception_and_is_run_again_from_its_lane(
    tmp_path: Path,
) -> None:
    failures.append(ValueError("not now"))
    settings = one_lane(tmp_path, "suspending", backoff=0.5, backoff_cap=0.5)
    async with scene(settings, runs=False) as tenant:
        await tenant.dispatcher.start(loops=False)
        command = await tenant.command("sync-mail")
        (ran,) = await tenant.dispatcher.run_now([command])
        assert (ran.status, ran.result, ran.error) == ("retry", None, "ValueError: not now")
        await tenant.dispatcher.stop()
        tenant.dispatcher = Dispatcher(tenant.journal, tenant.alerts)
        await tenant.start()
        await tenant.comes_to(command, "done")


async def test_a_command_that_cannot_run_now_stays_in_its_lane(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with scene(one_lane(tmp_path, "suspending"), runs=False) as tenant:
        await tenant.dispatcher.start(loops=False)
        await tenant.lanes.set_lane("mail", Running.PAUSED, "a test")
        command = await tenant.command("sync-mail")
        (ran,) = await tenant.dispatcher.run_now([command])
        assert (ran.status, ran.error) == ("ready", None)

        async def broken(*_: object) -> None:
            raise RuntimeError("a bug")

        monkeypatch.setattr(tenant.lanes, "claim", broken)
        (ran,) = await tenant.dispatcher.run_now([command])
        assert (ran.status, ran.error) == ("unknown", "RuntimeError")
        assert seen == []
        await tenant.dispatcher.stop()


async def test_a_process_that_dispatches_nothing_needs_no_receivers_secret(
    tmp_path: Path,
) -> None:
    lanes = {"mail": handled(HERE + "suspending"), "parcels": lane()}
    courier = receiver("http://127.0.0.1:9/", "opaque", secret_env="A_VARIABLE_THAT_NOBODY_SET")
    settings = settings_of(tmp_path, lanes, {"courier": courier}, dispatch=False)
    async with scene(settings, runs=False) as tenant:
        await tenant.dispatcher.start(loops=False)
        command = await tenant.command("sync-mail")
        (ran,) = await tenant.dispatcher.run_now([command])
        assert ran.status == "done"
        await tenant.dispatcher.stop()
    with pytest.raises(SettingsInvalid, match="A_VARIABLE_THAT_NOBODY_SET"):
        async with scene(settings_of(tmp_path, lanes, {"courier": courier})):
            pass


SYNC = """
[lane.mail]
effect = "internal"
handler = "tests.support.handlers:told"
attempts = 1

[lifecycle.order]
initial = "draft"

[lifecycle.order.actions.place]
from = ["draft"]
to = "draft"
commands = [
  { name = "confirm", lane = "mail", mode = "sync" },
  { name = "remind", lane = "mail" },
  { name = "invoice", lane = "mail", mode = "sync" },
]
"""


def test_commands_of_a_request_run_in_it_and_fail_without_failing_it(tmp_path: Path) -> None:
    server = Server(tmp_path / "server", UNREWIND_DISPATCH="false")
    (server.folder / "unrewind.toml").write_text(SYNC)
    server.start()
    try:
        placed = server.decide("op-1", "order/1", "place", body={"fail": False})
        assert placed.status == 201
        confirm, remind, invoice = placed.json["commands"]
        assert placed.json["ran"] == [
            {
                "id": confirm,
                "kind": "confirm",
                "lane": "mail",
                "status": "done",
                "result": "told of confirm",
                "error": None,
            },
            # The one before it in the list waits in its lane, so this one must wait too.
            {
                "id": invoice,
                "kind": "invoice",
                "lane": "mail",
                "status": "ready",
                "result": None,
                "error": None,
            },
        ]
        assert server.get(f"commands/{remind}").json["status"] == "ready"
        again = server.decide("op-1", "order/1", "place", body={"fail": False})
        assert (again.status, again.json["ran"]) == (200, [])
        failed = server.decide("op-2", "order/2", "place", body={"fail": True})
        assert failed.status == 201
        (first, _) = failed.json["ran"]
        assert (first["status"], first["error"]) == ("dead", "ValueError: told to fail")
        assert server.get("operations/op-2").status == 200
    finally:
        assert server.end() == 0
    assert "Traceback" not in server.errors
    assert verify_files(server.settings) == []
