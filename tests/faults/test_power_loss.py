"""P1, P2, P4: power fails after any write, and takes along whatever was not synced."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest

from journal import Operation
from journal.log.sqlite import SqliteLog
from journal.permits import Asked, claim
from journal.record import Record
from journal.store.sqlite import SqliteStore
from journal.sweeping import sweep
from journal.worker import drive
from journal.writepath import settle, turn
from reconstruct.verification import verify
from tests.faults.disk import Disk, Image
from tests.faults.recording import Mark, Step, recorded
from tests.faults.scenes import JOURNALLED
from tests.faults.scratch import fresh, scratch
from tests.faults.strace import AGAIN, SHARES, require_strace
from tests.faults.working import DECISIONS, LANES, SEED, settings_at
from tests.support import proof
from tests.support.releases import PAST
from tests.support.tenants import accepted
from tests.support.whole import rows_of, verify_files

_VARIANTS = ("some", "torn", "kept")
_VERIFIED = 3
"""In a plain run, one image in so many is verified entry by entry; all are head by head."""
_WHOLE = 120
"""One in so many is verified by what shares no code with the project, too."""
_REPEATED = 10


class Told:
    """What somebody outside knows at a moment: what was asked, acknowledged, sent and answered."""

    def __init__(self) -> None:
        self.asked: dict[str, Operation] = {}
        self.told: dict[str, str] = {}
        self.committed: set[str] = set()
        self.sent: dict[str, str] = {}
        self.known: set[str] = set()
        self.newest: list[Operation] = []

    def hear(self, mark: Mark) -> None:
        if mark.kind == "asked":
            facts = {**mark.facts, "body": mark.facts["body"].encode()}
            self.asked[mark.name] = Operation(mark.name, **facts)
        elif mark.kind == "told":
            self.told[mark.name] = mark.facts["digest"]
            self.newest = [*self.newest[1 - _REPEATED :], self.asked.pop(mark.name)]
        elif mark.kind == "permitted":
            self.committed.add(mark.facts["digest"])
        elif mark.kind == "sent":
            self.sent[mark.name] = mark.facts["lane"]
        elif mark.kind == "known":
            self.known.add(mark.name)

    def check(self, folder: Path, *, verified: bool, whole: bool) -> None:
        """Open what the power cut left, as a start does, and hold it against every promise."""
        settings = settings_at(folder)
        if self.told:
            self._journalled(settings.journal_file)
        record = Record(settings)
        drive(record.open())
        try:
            self._decisions(record)
            self._releases(record)
            drive(settle(record))
        finally:
            drive(record.close())
        if verified:
            report = verify(settings)
            assert (report.verdict, report.findings) == ("clean", [])
        if whole:
            assert verify_files(settings, work=False) == []

    def _journalled(self, file: Path) -> None:
        """P1, P3: the journal has it already, before a start hands anything off."""
        digests = {digest for (digest,) in rows_of(file, JOURNALLED)}
        assert self.committed <= digests
        assert digests.issuperset(self.told.values())

    def _decisions(self, record: Record) -> None:
        """P1, P6: what was acknowledged stands as it was told; the rest is decided at most once."""
        wanted = [*self.newest, *self.asked.values()]
        answers = [accepted(answer) for answer in drive(turn(record, wanted))]
        rows = cast("SqliteLog", record.log).database.connection.execute(
            "SELECT operation, lower(hex(digest)) FROM entries WHERE stream = 'decisions'"
        )
        found = rows.fetchall()
        stands = dict(found)
        assert len(stands) == len(found)
        assert not {name for name, digest in self.told.items() if stands.get(name) != digest}
        for operation, answer in zip(wanted, answers, strict=True):
            assert stands[operation.operation] == answer.digest
            assert answer.outcome == "duplicate" or operation.operation not in self.told

    def _releases(self, record: Record) -> None:
        """P4: however late it is, what was perhaps sent is not sent again on a guess."""
        connection = cast("SqliteStore", record.store).database.connection
        connection.execute("UPDATE unrewind_work SET sweep_at = ? WHERE sweep_at > ''", (PAST,))
        connection.execute("UPDATE unrewind_work SET due = ? WHERE due > ''", (PAST,))
        drive(sweep(record))
        again = {
            permit.id
            for lane in LANES.values()
            for permit in drive(claim(record, Asked(lane, "later", f"later-{lane}", 4))).permits
        }
        assert not again & self.known
        assert not {release for release in again if self.sent.get(release) == LANES["letter"]}


class Cuts:
    """The record of a run, its disk at each step, and a place to put what a power cut leaves."""

    def __init__(self, folder: Path, steps: list[Step]) -> None:
        self.folder, self.steps = folder, steps
        self.checked = 0
        self.share = 1

    def replay(self) -> Iterator[tuple[int, bool, Disk, Told]]:
        """Each step with the disk and the knowledge before it, and whether it makes any durable."""
        disk, told = Disk(self.folder), Told()
        for number, step in enumerate(self.steps):
            yield number, disk.makes_durable(step), disk, told
            disk.take(step)
            if isinstance(step, Mark):
                told.hear(step)
        yield len(self.steps), True, disk, told

    def check(self, image: Image, told: Told, what: str) -> None:
        spot = self.folder / "spot"
        self.checked += 1
        image = [*image]
        _put(spot, image)
        try:
            verified = self.share == 1 or self.checked % _VERIFIED == 0
            told.check(spot, verified=verified, whole=self.checked % _WHOLE == 0)
        except Exception as error:
            left = proof.folder() / "power-cut"
            left.parent.mkdir(parents=True, exist_ok=True)
            _put(left, image)
            raise AssertionError(f"{what} (its files are kept in {left})") from error


def _put(folder: Path, image: Image) -> None:
    fresh(folder)
    for name, data in image:
        if data is None:
            (folder / name).mkdir()
        else:
            (folder / name).write_bytes(data)


@pytest.fixture(scope="module")
def cuts() -> Iterator[Cuts]:
    """One run of the tenant, recorded."""
    require_strace()
    with scratch() as folder:
        work = fresh(folder / "work")
        command = [sys.executable, "-m", "tests.faults.working", str(work), str(DECISIONS)]
        trace = folder / "trace"
        steps = recorded(command, work, trace, "marks")
        trace.unlink()
        assert sum(isinstance(step, Mark) and step.kind == "told" for step in steps) >= DECISIONS
        yield Cuts(work, steps)


def _note(cuts: Cuts, name: str, told: Told, images: int) -> None:
    proof.record(
        f"power-{name}",
        AGAIN,
        scope=images,
        steps=len(cuts.steps),
        images=images,
        acknowledged=len(told.told),
        sent=len(told.sent),
        lost=0,
        sent_twice=0,
    )


@pytest.mark.parametrize("share", SHARES)
def test_p1_a_power_cut_takes_along_all_that_was_not_synced(cuts: Cuts, share: int) -> None:
    cuts.share = share
    # Between two syncs nothing changes but what was told, which only grows: the last moment counts.
    moments = 0
    images = 0
    for number, durable, disk, told in cuts.replay():
        moments += durable
        if durable and (moments % share == 0 or number == len(cuts.steps)):
            images += 1
            cuts.check(disk.lost(), told, f"all unsynced is lost before step {number}")
    assert len(told.told) >= DECISIONS
    assert told.sent
    _note(cuts, "lost", told, images)


@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("variant", _VARIANTS)
def test_p1_a_power_cut_leaves_some_of_what_was_not_synced(
    cuts: Cuts, variant: str, share: int
) -> None:
    cuts.share = share
    images = 0
    for number, _, disk, told in cuts.replay():
        # A tenth of the steps is shared by the variants; a long run gives every step to each.
        if share == 1 or number % (len(_VARIANTS) * share) == _VARIANTS.index(variant) * share:
            images += 1
            dice = random.Random(f"{SEED} {number}")
            image = disk.kept() if variant == "kept" else getattr(disk, variant)(dice)
            cuts.check(image, told, f"{variant} of the unsynced is left before step {number}")
    _note(cuts, variant, told, images)
