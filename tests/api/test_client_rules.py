"""The client's rules, without a server: when it tries again, and what it will not be set to."""

import inspect
import threading
import time
import uuid
from typing import Any

import pytest

from api.client import AsyncClient, Client, Result, time_ordered
from api.client.attempts import Call, Heard, Lost, Missed, Pause, Policy, Send, Tally, attempts
from api.client.wire import Address, blocking, concurrent


def played(
    policy: Policy, *events: Heard | Missed, chance: float = 0.5
) -> tuple[list[float], list[float], Any]:
    """The attempts' time-outs, the pauses between them, and the end."""
    clock = [0.0]
    sends: list[float] = []
    pauses: list[float] = []
    call = Call("GET", "x", lambda _, content: content)
    steps = attempts(call, policy, Tally(), lambda: clock[0], lambda: chance)
    coming = iter(events)
    event: Heard | Missed | None = None
    try:
        step = next(steps)
        while True:
            if isinstance(step, Pause):
                pauses.append(step.seconds)
                clock[0] += step.seconds
                event = None
            else:
                assert isinstance(step, Send)
                sends.append(step.seconds)
                event = next(coming)
            step = steps.send(event)
    except StopIteration as end:
        return sends, pauses, end.value


def waiting(**headers: str) -> Heard:
    return Heard(503, headers, b"")


RESET = Missed(sent=True, why="reset")
PATIENT = Policy(timeout=10, attempts=8, deadline=1000, base=0.2, cap=1.0)


def test_pauses_are_a_random_part_of_a_doubling_bound() -> None:
    _, pauses, end = played(PATIENT, *[RESET] * 8, chance=0.5)
    assert pauses == [0.1, 0.2, 0.4, 0.5, 0.5, 0.5, 0.5]
    assert isinstance(end, Lost)
    assert sum(played(PATIENT, *[RESET] * 8, chance=0.0)[1]) == 0


def test_retry_after_is_honoured_and_spread() -> None:
    _, pauses, _ = played(PATIENT, waiting(**{"retry-after": "7"}), Heard(200, {}, b"1"))
    assert pauses == [7.1]
    date = {"retry-after": "Wed, 01 Jan 2025 00:00:00 GMT"}
    assert played(PATIENT, waiting(**date), Heard(200, {}, b"1"))[1] == [0.1]


def test_nothing_goes_on_beyond_the_deadline() -> None:
    brief = Policy(timeout=10, attempts=8, deadline=5, base=0.2, cap=1.0)
    sends, pauses, end = played(brief, waiting(**{"retry-after": "3"}), RESET, *[RESET] * 8)
    assert sends[0] == 5
    assert sum(pauses) < 5
    assert sends[1] == pytest.approx(5 - pauses[0])
    assert isinstance(end, Lost)
    _, pauses, end = played(brief, waiting(**{"retry-after": "3600"}))
    assert pauses == []
    assert isinstance(end, Lost)
    assert "beyond the deadline" in end.reason


def test_operation_ids_are_uuids_in_the_order_of_time(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [uuid.UUID(time_ordered()) for _ in range(5000)]
    assert {(one.version, one.variant) for one in found} == {(7, uuid.RFC_4122)}
    assert found == sorted(found)
    assert len(set(found)) == 5000
    assert abs((found[0].int >> 80) / 1000 - time.time()) < 60
    now = time.time_ns()
    monkeypatch.setattr(time, "time_ns", lambda: now - 10**12)
    assert uuid.UUID(time_ordered()) > found[-1]


def test_operation_ids_of_many_threads_differ() -> None:
    found: list[str] = []
    threads = [
        threading.Thread(target=lambda: found.extend(time_ordered() for _ in range(1000)))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(found)) == 8000


def test_both_clients_have_one_surface() -> None:
    def surface(kind: type) -> dict[str, inspect.Signature]:
        found = inspect.getmembers(kind, inspect.isfunction)
        return {name: inspect.signature(one) for name, one in found if name[0] != "_"}

    blocking, awaited = surface(Client), surface(AsyncClient)
    blocking["aclose"] = blocking.pop("close")
    assert set(blocking) == set(awaited)
    for name, signature in blocking.items():
        assert list(signature.parameters.values()) == list(awaited[name].parameters.values())
    assert inspect.signature(Client) == inspect.signature(AsyncClient)


def test_settings_that_make_no_sense_are_refused_without_telling_the_token() -> None:
    async def alarm(result: Result) -> None: ...

    secret = "unr_id_secret\n"
    for url in ("localhost:1", "ftp://host", "http://", "http://user:pw@host", "http://host/?a=b"):
        with pytest.raises(ValueError, match="URL"):
            Client(url, "unr_id_secret")
    with pytest.raises(ValueError, match="token") as found:
        Client("http://host", secret)
    assert "secret" not in str(found.value)
    with pytest.raises(ValueError, match="tenant"):
        Client("http://host", "unr_id_secret", "a/b")
    with pytest.raises(ValueError, match="attempts"):
        Client("http://host", "unr_id_secret", attempts=0)
    with pytest.raises(TypeError, match="on_abandoned"):
        Client("http://host", "unr_id_secret", on_abandoned=alarm)  # type: ignore[arg-type]
    with Client("https://host/base/", "unr_id_secret") as client:
        assert repr(client) == "<Client of https://host/base/v1/main>"


def test_l17_the_transports_repeat_nothing_by_themselves() -> None:
    address = Address("http://host", "unr_id_secret", "main")
    for transport in (blocking(address), concurrent(address)):
        assert transport._pool._retries == 0
