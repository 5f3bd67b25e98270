"""Whoever stops a tenant while it is being reopened has stopped it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from journal.control import Control
from journal.errors import Recovering
from journal.locks import StopFile
from reconstruct import recovery, reopening
from tests.reconstruct.towns import Town
from tests.support.releases import lane_settings
from tests.support.tenants import operation


@pytest.fixture
def town(tmp_path: Path) -> Iterator[Town]:
    made = Town(lane_settings(tmp_path))
    try:
        yield made
    finally:
        made.close()


def test_p9_a_stop_put_up_while_the_tenant_is_reopened_stays_up(
    town: Town, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = reopening._put_in_force

    async def stopping(*given: Any, **named: Any) -> Control:
        done = await real(*given, **named)
        # `stop` of another process: it waits for nobody.
        town.settings.beside("stop").unlink()
        StopFile(town.settings.beside("stop")).put_up("a second incident", "now")
        return done

    recovery.stop(town.settings, "a test")
    town.do(recovery.begin, "a test")
    town.do(recovery.apply)
    monkeypatch.setattr(reopening, "_put_in_force", stopping)
    done = town.do(recovery.reopen)
    assert (done.stage, done.passed, done.soon) == ("closed", [], False)
    assert "stopped again while it was reopened (a second incident)" in done.missing[0]
    with pytest.raises(Recovering, match="a second incident"):
        town.accept(operation("case/1", "note"))
    monkeypatch.undo()
    assert town.do(recovery.reopen).stage == "open"
    town.accept(operation("case/1", "note"))
    town.finish_off()


def test_p9_a_stop_put_up_before_the_lock_is_had_is_not_the_one_to_take_down(
    town: Town, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody stopped it when the reopening was asked for."""
    real = reopening._compared

    async def stopping(*given: Any) -> Any:
        StopFile(town.settings.beside("stop")).put_up("a first incident", "now")
        return await real(*given)

    monkeypatch.setattr(reopening, "_compared", stopping)
    assert town.do(recovery.reopen).stage == "closed"
    monkeypatch.undo()
    assert town.do(recovery.reopen).stage == "open"
    town.finish_off()
