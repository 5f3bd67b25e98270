"""The dispatcher's own life: its heart, its loops, what it holds, and how it ends."""

import asyncio
import contextlib
import itertools
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, Self

import pytest

from api import dispatching as dispatching_process
from api.dispatcher import Dispatcher
from api.heart import Heart
from api.loops import Loop
from api.schedule import Schedule
from api.watching import Watch
from journal import Settings
from journal.control import Running
from journal.errors import JournalUnavailable
from journal.inquiry import WorkView
from journal.permits import Asked
from journal.record import Record
from journal.worker import drive
from tests.support import handlers
from tests.support.dispatching import (
    NEVER,
    SECONDS,
    Scene,
    handled,
    lane,
    receiver,
    scene,
    settings_of,
)
from tests.support.handlers import let_go
from tests.support.receivers import ROOT, Receiver, receiving

HERE = "tests.support.handlers:"


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    handlers.reset()
    yield
    let_go.set()


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Receiver]:
    with receiving(tmp_path / "receiver") as running:
        yield running


def pushing(folder: Path, made: Receiver, **changes: Any) -> Settings:
    return settings_of(
        folder,
        {"parcels": lane(**changes)},
        {"courier": receiver(made.url, "idempotent", made.status_url)},
    )


def in_seconds(moment: str | None) -> float:
    assert moment is not None
    return datetime.fromisoformat(moment).timestamp()


# The heart.


class Beats:
    """The signs of life of a row, read again and again by a thread with files of its own."""

    def __init__(self, settings: Settings, identity: str) -> None:
        self.rows: list[WorkView] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(settings, identity))

    def _run(self, settings: Settings, identity: str) -> None:
        from journal.inquiry import read_one

        record = Record(settings, read_only=True)
        drive(record.open())
        while not self._stop.wait(0.005):
            row = drive(read_one(record, identity))
            if not self.rows or self.rows[-1].heartbeat != row.heartbeat:
                self.rows.append(row)
        drive(record.close())

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    @property
    def at(self) -> list[float]:
        """When there were signs of life while it was claimed."""
        return [in_seconds(row.heartbeat) for row in self.rows if row.status == "running"]


async def test_l5_two_heartbeats_land_in_each_of_ten_leases(tmp_path: Path) -> None:
    lease = 0.9
    times = {"timeout": 0.8, "lease": lease, "sweep_after": 1.0, "cap": 300.0}
    with receiving(tmp_path / "receiver") as made:
        settings = settings_of(
            tmp_path,
            {"parcels": lane(**times)},
            {"courier": receiver(made.url, "idempotent", timeout=0.8)},
        )
    async with scene(settings, runs=False) as tenant:
        release = await tenant.permit()
        heart = Heart(settings)
        heart.start()
        (permit,) = (await tenant.lanes.claim(Asked("parcels", "w", "claim-1"))).permits
        with Beats(settings, release) as beats:
            heart.hold("parcels", [(permit.id, permit.lease)])
            began = in_seconds((await tenant.row(release)).claimed)
            await tenant.seen(lambda: beats.at and beats.at[-1] > began + 10 * lease)
            assert (await tenant.lanes.sweep()).moved == []
        heart.stop()
        for number in range(10):
            start = began + number * lease
            assert sum(start <= at < start + lease for at in beats.at) >= 2, (number, beats.at)


async def test_l12_an_event_loop_that_is_blocked_for_two_leases_keeps_its_lease(
    tmp_path: Path,
) -> None:
    times = {"timeout": 0.5, "lease": 1.0, "sweep_after": 1.5, "cap": 300.0}
    settings = settings_of(tmp_path, {"slow": handled(HERE + "blocking", **times)})
    async with scene(settings) as tenant:
        command = await tenant.command("slow", {"seconds": 3.0})
        sweeper = await asyncio.create_subprocess_exec(
            sys.executable, "-c", SWEEPING, str(tmp_path), command,
            cwd=ROOT, stdout=subprocess.PIPE,
        )  # fmt: skip
        row = await tenant.comes_to(command, "done", "retry", "dead")
        assert (row.status, row.expired, row.attempts) == ("done", 0, 1)
        said, _ = await sweeper.communicate()
        looks, moved = map(int, said.split())
        assert looks > 3
        assert moved == 0


SWEEPING = """
import sys
import time
from pathlib import Path
from journal.inquiry import read_one
from journal.record import Record
from journal.sweeping import sweep
from journal.worker import drive
from tests.support.dispatching import handled, settings_of

folder, command = sys.argv[1:]
times = {"timeout": 0.5, "lease": 1.0, "sweep_after": 1.5, "cap": 300.0}
lanes = {"slow": handled("tests.support.handlers:blocking", **times)}
record = Record(settings_of(Path(folder), lanes))
drive(record.open())
looks = moved = 0
while (status := drive(read_one(record, command)).status) not in ("done", "dead"):
    moved += drive(sweep(record)).count
    looks += status == "running"
    time.sleep(0.02)
drive(record.close())
print(looks, moved)
"""


async def test_the_heart_stops_at_the_lanes_cap(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    times = {"timeout": 0.05, "lease": 0.1, "sweep_after": 0.15, "cap": 0.3}
    settings = settings_of(tmp_path, {"slow": handled(HERE + "hanging", **times)})
    async with scene(settings, runs=False) as tenant:
        command = await tenant.command("slow")
        heart = Heart(settings)
        heart.start()
        (permit,) = (await tenant.lanes.claim(Asked("slow", "w", "claim-1"))).permits
        heart.hold("slow", [(permit.id, permit.lease)])

        async def swept() -> bool:
            return (await tenant.lanes.sweep()).count > 0

        await tenant.until(swept)
        row = await tenant.row(command)
        assert in_seconds(row.heartbeat) - in_seconds(row.claimed) > 0.1
        assert "reached its lane's cap" in caplog.text
        heart.stop()


async def test_a_heart_that_cannot_open_its_files_tries_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, made: Receiver
) -> None:
    settings = pushing(tmp_path, made, lease=21.0)
    failed = threading.Event()
    opening = Record.open

    async def broken(record: Record, **kept: Any) -> None:
        if threading.current_thread().name == "heart" and not failed.is_set():
            failed.set()
            raise JournalUnavailable("not now")
        await opening(record, **kept)

    async with scene(settings, runs=False) as tenant:
        release = await tenant.permit()
        monkeypatch.setattr(Record, "open", broken)
        monkeypatch.setattr(Heart, "_pause", lambda *_: 0.05)
        heart = Heart(settings)
        heart.start()
        (permit,) = (await tenant.lanes.claim(Asked("parcels", "w", "claim-1"))).permits
        before = (await tenant.row(release)).heartbeat
        heart.hold("parcels", [(permit.id, permit.lease)])

        async def beaten() -> bool:
            return (await tenant.row(release)).heartbeat != before

        await tenant.until(beaten)
        assert failed.is_set()
        heart.stop()


# Beginning.


async def test_what_could_not_be_begun_is_let_go_swept_and_carried_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with receiving(tmp_path / "receiver", contract="opaque") as made:
        await _not_begun(tmp_path, monkeypatch, made)


async def _not_begun(folder: Path, monkeypatch: pytest.MonkeyPatch, made: Receiver) -> None:
    settings = settings_of(
        folder,
        {"parcels": lane(lease=0.3, sweep_after=0.4)},
        {"courier": receiver(made.url, "opaque", timeout=0.2)},
    )
    async with scene(settings, runs=False) as tenant:
        beat, failures = tenant.lanes.beat, itertools.count()

        async def broken(*args: Any) -> Any:
            match next(failures):
                case 0:
                    raise JournalUnavailable("not now")
                case 1:
                    raise RuntimeError("a bug")
            return await beat(*args)

        monkeypatch.setattr(tenant.lanes, "beat", broken)
        releases = [await tenant.permit(), await tenant.permit()]
        await tenant.start()

        async def swept() -> bool:
            await tenant.lanes.sweep()
            return all([(await tenant.row(one)).status == "done" for one in releases])

        await tenant.until(swept)
        # Nothing had been sent, so an opaque receiver's row went back to its lane.
        assert [made.attempts(release) for release in releases] == [1, 1]
        assert tenant.dispatcher._heart._until == {}


async def test_a_claim_whose_answer_was_lost_is_asked_for_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, made: Receiver
) -> None:
    async with scene(pushing(tmp_path, made), runs=False) as tenant:
        claim = tenant.lanes.claim
        lost: list[Any] = []

        async def losing(asked: Asked) -> Any:
            claimed = await claim(asked)
            if claimed.permits and not lost:
                lost.append(claimed)
                raise JournalUnavailable("it is committed, and not yet in the journal")
            return claimed

        monkeypatch.setattr(tenant.lanes, "claim", losing)
        release = await tenant.permit()
        await tenant.start()
        row = await tenant.comes_to(release, "done")
        assert len(lost) == 1
        assert (row.attempts, row.expired, made.attempts(release)) == (1, 0, 1)


async def test_a_lane_that_is_paused_gives_nothing_out_and_the_others_do(
    tmp_path: Path, made: Receiver
) -> None:
    settings = settings_of(
        tmp_path,
        {"parcels": lane(), "letters": lane()},
        {"courier": receiver(made.url, "idempotent")},
    )
    async with scene(settings) as tenant:
        await tenant.lanes.set_lane("parcels", Running.PAUSED, "a strike")
        waits = await tenant.permit("parcels")
        await tenant.comes_to(await tenant.permit("letters"), "done")
        await tenant.rests()
        assert (await tenant.row(waits)).status == "ready"
        await tenant.lanes.set_lane("parcels", Running.ON, "it is over")
        await tenant.comes_to(waits, "done")


async def test_a_batch_of_calls_is_made_one_after_the_other_in_its_slot(
    tmp_path: Path, made: Receiver
) -> None:
    async with scene(pushing(tmp_path, made, concurrency=1, batch=3), runs=False) as tenant:
        releases = [await tenant.permit() for _ in range(4)]
        made.tell("delay", release=releases[0])
        await tenant.start()
        await tenant.seen(lambda: made.attempts(releases[0]))
        await tenant.rests()
        assert [(await tenant.row(one)).step for one in releases[:3]] == [
            "calling",
            *[f"picked up by {tenant.dispatcher._keeper.worker}"] * 2,
        ]
        made.finish(releases[0])
        for release in releases:
            await tenant.comes_to(release, "done")
        assert [call["release"] for call in made.calls()] == releases


# Loops.


async def test_nothing_ends_a_loop(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    made: Receiver,
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with scene(pushing(tmp_path, made), runs=False) as tenant:
        faults = {}
        for name in ("claim", "to_ask", "take_answer", "report"):
            whole, times = getattr(tenant.lanes, name), itertools.count()

            async def broken(
                *args: Any, name: str = name, whole: Any = whole, times: Any = times
            ) -> Any:
                faults[name] = number = next(times)
                if number == 0:
                    raise RuntimeError(f"{name} is broken")
                if number == 1:
                    raise JournalUnavailable(f"{name} is down")
                return await whole(*args)

            monkeypatch.setattr(tenant.lanes, name, broken)
        await tenant.start()
        made.tell("pending", calls=1)
        first, second = await tenant.permit(), await tenant.permit()
        await tenant.seen(lambda: made.lines("change") or made.attempts() >= 2)
        for release in (first, second):
            if made.state_of(release) == "pending":
                made.finish(release)
        for release in (first, second):
            await tenant.comes_to(release, "done")
        assert faults.keys() == {"claim", "to_ask", "take_answer", "report"}
        assert min(faults.values()) >= 2
        assert "claim is broken" in caplog.text
        assert caplog.text.count("claim is down") == 1


def looked(loop: Loop, times: int) -> bool:
    return loop.looks >= times


async def test_a_ring_makes_one_look_and_no_slot_that_is_taken_makes_any(
    tmp_path: Path, made: Receiver
) -> None:
    settings = settings_of(
        tmp_path,
        {"parcels": lane()},
        {"courier": receiver(made.url, "idempotent")},
        dispatch_every=NEVER,
    )
    async with scene(settings) as tenant:
        (loop,) = [carrier.loop for carrier in tenant.dispatcher._carriers.values()]
        made.tell("delay")
        release = await tenant.permit()
        tenant.dispatcher.wake()
        await tenant.seen(lambda: made.attempts(release))
        looks = loop.looks
        for number in (1, 2, 3):
            tenant.dispatcher.wake()
            await tenant.seen(partial(looked, loop, looks + number))
        # As long as it takes to carry another one out, a loop that spins looks often.
        made.finish(release)
        await tenant.comes_to(release, "done")
        assert loop.looks <= looks + 5


async def test_slots_that_get_free_are_filled_without_a_tick(
    tmp_path: Path, made: Receiver
) -> None:
    settings = settings_of(
        tmp_path,
        {"parcels": lane(concurrency=2)},
        {"courier": receiver(made.url, "idempotent")},
        dispatch_every=NEVER,
    )
    async with scene(settings, runs=False) as tenant:
        releases = [await tenant.permit() for _ in range(9)]
        await tenant.start()
        for release in releases:
            await tenant.comes_to(release, "done")


def came(made: Receiver, number: int) -> bool:
    return made.attempts() > number


async def test_no_more_is_under_way_than_the_concurrency_allows(
    tmp_path: Path, made: Receiver
) -> None:
    async with scene(pushing(tmp_path, made, concurrency=2)) as tenant:
        other = Dispatcher(tenant.journal, tenant.alerts)
        await other.start()
        made.tell("delay")
        releases = [await tenant.permit() for _ in range(5)]
        await tenant.seen(lambda: made.attempts() >= 2)
        looks = other._loops[0].looks
        await tenant.seen(lambda: other._loops[0].looks > looks + 2)
        await tenant.rests()
        (view,) = [one for one in await tenant.lanes.lanes() if one.lane == "parcels"]
        assert (view.counts["running"], view.counts["ready"]) == (2, 3)
        assert made.attempts() == 2
        for number in range(5):
            await tenant.seen(partial(came, made, number))
            made.finish(made.calls()[number]["release"])
        for release in releases:
            await tenant.comes_to(release, "done")
        assert made.attempts() == 5
        await other.stop()


# Keeping results.


async def test_a_result_that_cannot_be_stored_is_stored_when_it_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, made: Receiver
) -> None:
    async with scene(pushing(tmp_path, made)) as tenant:
        report, tries = tenant.lanes.report, itertools.count()

        async def broken(*args: Any) -> Any:
            if next(tries) < 3:
                raise JournalUnavailable("the disk is full")
            return await report(*args)

        monkeypatch.setattr(tenant.lanes, "report", broken)
        release = await tenant.permit()
        row = await tenant.comes_to(release, "done")
        assert (row.attempts, made.attempts(release)) == (1, 1)
        assert tenant.alerts.raised["result-not-stored"] == 1
        await tenant.seen(lambda: not tenant.alerts._standing)


# Ending.


async def test_a_stop_waits_for_what_is_under_way_and_keeps_its_result(
    tmp_path: Path, made: Receiver
) -> None:
    async with scene(pushing(tmp_path, made)) as tenant:
        made.tell("delay", calls=1)
        release = await tenant.permit()
        await tenant.seen(lambda: made.attempts(release))
        stopping = asyncio.create_task(tenant.stop())
        await asyncio.sleep(0)
        waits = await tenant.permit()
        assert not stopping.done()
        made.finish(release)
        await stopping
        assert (await tenant.row(release)).status == "done"
        assert (await tenant.row(waits)).status == "ready"


async def test_a_process_whose_writer_has_stopped_ends_to_be_started_again(
    tmp_path: Path, made: Receiver, capsys: pytest.CaptureFixture[str]
) -> None:
    async with scene(pushing(tmp_path, made), runs=False) as tenant:
        asked = asyncio.Event()
        run = dispatching_process._run(tenant.journal, ["parcels"], asked)
        running = asyncio.create_task(run)
        await tenant.comes_to(await tenant.permit(), "done")
        assert capsys.readouterr().out == "unrewind dispatches parcels\n"
        tenant.journal._writing.poisoned = "the disk failed"
        async with asyncio.timeout(SECONDS):
            assert await running is None
        assert not asked.is_set()
        tenant.journal._writing.poisoned = None


HANGS = """
import asyncio, sys
from pathlib import Path
from tests.support.dispatching import handled, scene, settings_of

async def main():
    lanes = {"mail": handled("tests.support.handlers:hanging", timeout=0.1, attempts=1)}
    async with scene(settings_of(Path(sys.argv[1]), lanes)) as tenant:
        await tenant.comes_to(await tenant.command("mail"), "dead")

asyncio.run(main())
"""


def test_a_handler_that_hangs_for_ever_keeps_no_process_from_ending(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", HANGS, str(tmp_path)], cwd=ROOT, timeout=SECONDS, check=False
    )
    assert done.returncode == 0


# Processes of their own.

CONFIG = """
dispatch = false
dispatch_every = 0.02

[receiver.courier]
url = "{receiver.url}"
contract = "idempotent"
window = 86400
timeout = 5

[lane.delivery]
receiver = "courier"
rate = {rate}
concurrency = 50
"""


@contextlib.contextmanager
def dispatching(folder: Path, *flags: str) -> Iterator[subprocess.Popen[str]]:
    """`unrewind dispatch` over the tenant in a folder, once it says that it runs."""
    command = [sys.executable, "-c", "from api.cli import main; main()", "dispatch", *flags]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with (folder / "stderr").open("a") as errors:
        process = subprocess.Popen(
            command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=errors, text=True
        )
    assert process.stdout is not None
    watchdog = threading.Timer(SECONDS, process.kill)
    watchdog.start()
    try:
        line = process.stdout.readline()
        assert line == "unrewind dispatches delivery\n", (folder / "stderr").read_text()
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
        watchdog.cancel()


def shared(folder: Path, made: Receiver, rate: float) -> Settings:
    import journal

    file = folder / "unrewind.toml"
    file.write_text(CONFIG.format(receiver=made, rate=rate))
    return journal.load_settings(file, {"data": str(folder / "data")})


async def released(tenant: Scene, name: str) -> str:
    entity = f"document/{name}"
    await tenant.decide("submit", entity=entity)
    await tenant.decide("approve", entity=entity)
    return await tenant.permit("release", entity=entity)


async def test_two_processes_share_one_rate(tmp_path: Path, made: Receiver) -> None:
    rate = 10.0
    settings = shared(tmp_path, made, rate)
    async with scene(settings, runs=False) as tenant:
        with dispatching(tmp_path), dispatching(tmp_path):
            rows: list[WorkView] = []
            # Which of them takes how many is chance; both must have taken some.
            while len({row.worker for row in rows}) < 2 and len(rows) < 600:
                releases = [await released(tenant, f"{len(rows)}-{n}") for n in range(30)]
                rows += [await tenant.comes_to(release, "done") for release in releases]
    claimed = sorted(in_seconds(row.claimed) for row in rows)
    assert len({row.worker for row in rows}) == 2
    for first, last in itertools.combinations(range(len(claimed)), 2):
        allowed = rate + rate * (claimed[last] - claimed[first]) + 1
        assert last - first + 1 <= allowed, (first, last)


async def test_a_process_ends_when_what_is_under_way_has_ended(
    tmp_path: Path, made: Receiver
) -> None:
    async with scene(shared(tmp_path, made, 0.0), runs=False) as tenant:
        with dispatching(tmp_path) as process:
            made.tell("delay", calls=1)
            release = await released(tenant, "1")
            await tenant.seen(lambda: made.attempts(release))
            process.send_signal(signal.SIGTERM)
            made.finish(release)
            assert await asyncio.to_thread(process.wait, SECONDS) == 0
        row = await tenant.row(release)
        assert (row.status, row.attempts) == ("done", 1)
        assert "Traceback" not in (tmp_path / "stderr").read_text()


# The schedule.


async def test_l13_a_job_that_starts_ten_seconds_late_runs(tmp_path: Path) -> None:
    settings = settings_of(tmp_path, {}, handoff_every=NEVER, detect_every=NEVER, sweep_every=NEVER)
    async with scene(settings, runs=False) as tenant:
        leading = await tenant.journal.join("serve", schedules=True)
        schedule = Schedule(tenant.journal, Watch(tenant.journal, tenant.alerts), leading)
        late = datetime.now(UTC) - timedelta(seconds=10)
        schedule._scheduler.modify_job("sweep", next_run_time=late)
        schedule.start()
        await tenant.until(tenant.lanes.last_sweep, "a sweep")
        await schedule.stop()
