"""R11: a checkpoint that fails costs room in the write-ahead log, and no decision."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.strace import SYNC, WRITE, injected, require_strace
from tests.soak.ledger import Ledger
from tests.soak.processes import item, site_at
from tests.support.whole import verify_files

_PAGES = 4000
_PAGE = 4096


@pytest.mark.parametrize(
    ("side", "calls", "error"), [("store", SYNC, "EIO"), ("journal", WRITE, "ENOSPC")]
)
def test_p1_a_failed_checkpoint_loses_nothing(
    tmp_path: Path, side: str, calls: str, error: str
) -> None:
    require_strace()
    ledger = Ledger()
    with site_at(tmp_path, UNREWIND_HANDOFF_EVERY="3600") as site:
        server = site.start()
        database: Path = getattr(site, side)
        wal = database.with_name(f"{database.name}-wal")
        with injected(server, database, calls, f"error={error}:when=1+") as trace:
            for number in range(40):
                items = [
                    ledger.send(item(f"op-{number}-{n}", f"case/{n}", body={"text": "x" * 8000}))
                    for n in range(100)
                ]
                answer = server.ask("POST", "/v1/main/decisions/batch", {"items": items})
                ledger.hear_items(items, *answer)
                if wal.stat().st_size > _PAGES * _PAGE and "INJECTED" in trace.read_text():
                    break
            assert "INJECTED" in trace.read_text()
        assert "Traceback" not in server.errors, server.errors
        assert len(ledger.told) == len(ledger.sent)
        server.kill()
        after = site.start()
        ledger.repeat(after, ledger.told)
        ledger.check_journal(site.journal)
        report = site.do("verify")
        assert (report["verdict"], report["findings"]) == ("clean", [])
        assert after.stop() == 0
        assert verify_files(site.settings) == []
