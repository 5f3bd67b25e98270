"""The example receiver does what it is told, to whom it is told, and says when it cannot."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest

from examples.receiver.behaviours import AnyRule, CallbackKind
from examples.receiver.control import COMMANDS
from tests.support.receivers import SCRIPT, Receiver, receiving, release_id


@pytest.fixture
def receiver(tmp_path: Path) -> Iterator[Receiver]:
    with receiving(tmp_path) as made:
        yield made


def test_behaviour_is_for_a_release_or_for_so_many_calls_or_for_good(tmp_path: Path) -> None:
    start = '{"behave": "error", "status": 501}'
    with receiving(tmp_path, "--behave", start) as receiver:
        special = release_id()
        receiver.tell("error", calls=1, status=502)
        receiver.tell("error", calls=2, status=503)
        receiver.tell("error", release=special, status=504)

        def statuses(release: str, times: int) -> list[int]:
            return [receiver.send(release).status for _ in range(times)]

        assert statuses(special, 2) == [504, 504]
        assert statuses(release_id(), 5) == [502, 503, 503, 501, 501]
        receiver.tell("ok")
        assert statuses(release_id(), 1) == [200]
        assert statuses(special, 1) == [504]
        receiver.clear()
        assert statuses(special, 1) == [200]


def test_repeats_are_lost_or_failed_and_never_executed_again(receiver: Receiver) -> None:
    release = release_id()
    receiver.send(release)
    receiver.tell("error", calls=1, execute=True)
    assert receiver.send(release, 2).status == 500
    for behaviour in ("pending", "refuse", "void", "not-found-in-flight"):
        receiver.tell(behaviour, calls=1)
        assert receiver.send(release, 3).json["state"] == "done"
    assert receiver.executions(release) == 1


@pytest.mark.parametrize(
    "content",
    [
        {},
        [],
        {"behave": "dance"},
        {"behave": "error", "status": 200},
        {"behave": "delay", "second": 1},
        {"behave": "not-found", "on": "call"},
        {"behave": "refuse", "on": "lookup"},
        {"callback": "polite", "release": "rel_1"},
        {"finish": "rel_1", "as": "unclear"},
    ],
)
def test_a_command_that_makes_no_sense_is_told_so(receiver: Receiver, content: Any) -> None:
    reply = receiver.try_command(content)
    assert reply.status == 400
    assert reply.json["detail"]


def test_a_command_that_does_not_fit_is_told_so(receiver: Receiver) -> None:
    release = release_id()
    for content in (
        {"finish": release},
        {"forget": release},
        {"callback": "ok", "release": release},
    ):
        reply = receiver.try_command(content)
        assert reply.status == 409
        assert reply.json["detail"]


def test_everything_that_can_be_told_is_documented() -> None:
    text = SCRIPT.with_name("README.md").read_text(encoding="utf-8")
    names = [rule.__struct_config__.tag for rule in get_args(AnyRule)]
    names += [name for rule in get_args(AnyRule) for name in rule.__struct_fields__]
    assert [name for name in {*names, *get_args(CallbackKind)} if f"`{name}`" not in text] == []
    assert [name for name in COMMANDS if f'{{"{name}": ' not in text] == []
