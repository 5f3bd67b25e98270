"""P8: comparing every head beside other processes finds what is wrong, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from journal import detection, standing
from journal.acceptance import Operation
from journal.detection import Finding, Verdict
from journal.driving import drive
from journal.record import Record
from journal.settings import Settings
from journal.standing import compare_heads, examine
from journal.writepath import decide, make_ready, turn

pytestmark = pytest.mark.engines


@pytest.fixture(params=["postgresql", "jetstream"])
def pair(
    request: pytest.FixtureRequest, tmp_path: Path, store_url: str
) -> Iterator[tuple[Record, Record]]:
    """Two processes on two machines, as their records have the tenant open."""
    jetstream = request.param == "jetstream"
    name = "nats_server" if jetstream else "journal_url"
    found = request.getfixturevalue(name)
    made = []
    for machine in ("east", "west"):
        record = Record(
            Settings(
                data=str(tmp_path / machine),
                store=store_url,
                journal=found.url if jetstream else found,
                accept=["nats-sync-interval", "nats-single-server"],
                tenant=f"compared-{tmp_path.name[-12:].replace('_', '-').lower().strip('-')}",
                lock_timeout=0.2,
            )
        )
        drive(record.open())
        made.append(record)
    yield made[0], made[1]
    for record in made:
        drive(record.close())


def submit(number: int) -> Operation:
    return Operation(
        f"op-{number}", f"document/{number}", "submit", b"{}", body_type="application/json"
    )


def found_while(record: Record, meanwhile: Any, monkeypatch: pytest.MonkeyPatch) -> Finding:
    """What a comparison finds while something happens after its first look at every head."""
    finding, _ = drive(examine(record))
    real = detection.differing_heads

    left = [meanwhile]

    async def looking(*given: Any) -> Any:
        if left:
            left.pop()()
        return await real(*given)

    monkeypatch.setattr(standing, "differing_heads", looking)
    return drive(compare_heads(record, finding))


def test_p8_what_another_process_decided_meanwhile_is_no_difference(
    pair: tuple[Record, Record], monkeypatch: pytest.MonkeyPatch
) -> None:
    east, west = pair
    drive(turn(east, [submit(1)]))
    found = found_while(west, lambda: drive(turn(east, [submit(2)])), monkeypatch)
    assert found.verdict is Verdict.CLEAN


def test_p8_what_another_process_left_in_the_store_alone_waits_for_its_handoff(
    pair: tuple[Record, Record], monkeypatch: pytest.MonkeyPatch
) -> None:
    east, west = pair

    def die() -> None:
        async def append(*_: Any) -> None:
            raise SystemExit

        ready = drive(make_ready(east))
        assert east.log is not None
        monkeypatch.setattr(east.log, "append", append)
        with pytest.raises(SystemExit):
            drive(decide(east, ready, [submit(1)]))

    assert found_while(west, die, monkeypatch).verdict is Verdict.CRASHED
    monkeypatch.undo()
    drive(turn(west, [submit(2)]))
    assert drive(examine(west))[0].verdict is Verdict.CLEAN


def test_p8_a_head_that_differs_is_found(pair: tuple[Record, Record], store_url: str) -> None:
    east, west = pair
    drive(turn(east, [submit(1)]))
    schema = f"unrewind_{east.settings.tenant}"
    with psycopg.connect(store_url) as client:
        client.execute(f'UPDATE "{schema}".unrewind_entities SET revision = 7')
    finding, _ = drive(examine(west))
    assert drive(compare_heads(west, finding)).verdict is Verdict.REWOUND
