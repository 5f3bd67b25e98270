"""Shadow mode: unrewind judges beside the application, and holds nothing up."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator

import pytest

from journal.inside import Inside
from journal.settings import Settings
from tests.inside.apps import App, operation, put, rows_of


@pytest.fixture
def inside(settings: Settings) -> Iterator[Inside]:
    made = Inside(settings, shadow=True)
    try:
        yield made
    finally:
        made.close()


def noted(inside: Inside) -> list[tuple[str, str]]:
    return [(line.operation, line.kind) for line in inside.differences.read()]


def test_what_would_be_refused_is_noted_and_nothing_is_held_up(
    app: App, inside: Inside, settings: Settings
) -> None:
    with app.transaction():
        made = inside.decide_in(app.connection, operation("request"))
        put(app, "7", "requested", 1)
    assert inside.confirmed(made).revision == 1
    with app.transaction():
        assert inside.decide_in(app.connection, operation("request", operation="more")) is None
        assert inside.decide_in(app.connection, [operation("approve", "8")]) == []
        put(app, "7", "requested", 2)
    assert inside.confirmed("more", within=1) is None
    assert rows_of(settings) == [("7", "requested", 2)]
    assert noted(inside) == [
        ("more", "refused"),
        ("8-approve", "refused"),
        ("more", "unconfirmed"),
    ]


def test_a_tenant_that_cannot_decide_stops_no_transaction(
    app: App, inside: Inside, settings: Settings
) -> None:
    settings.beside("stop").touch()
    with app.transaction():
        inside.decide_in(app.connection, operation("request"))
        put(app, "7", "requested", 1)
    settings.beside("stop").unlink()
    moved = settings.journal_file.rename(settings.journal_file.with_suffix(".away"))
    inside.close()
    with app.transaction():
        inside.decide_in(app.connection, operation("approve"))
        put(app, "7", "approved", 2)
    moved.rename(settings.journal_file)
    settings.beside("stop").unlink(missing_ok=True)
    assert rows_of(settings) == [("7", "approved", 2)]
    assert noted(inside) == [("7-request", "undecided"), ("7-approve", "undecided")]


@pytest.mark.parametrize("engine", ["sqlite"])
def test_even_a_connection_that_is_none_raises_nothing(inside: Inside, settings: Settings) -> None:
    assert inside.decide_in(object(), operation("request")) is None
    closed = sqlite3.connect(settings.store_file)
    closed.close()
    assert inside.decide_in(closed, operation("approve")) is None
    assert noted(inside) == [("7-request", "undecided"), ("7-approve", "undecided")]
    inside.differences.path.chmod(0o600)
    with inside.differences.path.open("ab") as lines:
        lines.write(b'{"cut off')
    assert len(noted(inside)) == 2
