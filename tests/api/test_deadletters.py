"""Dead letters of a server that dispatches: what is replayed acts once, what may not be, is not."""

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.api.servers import Server
from tests.support.receivers import Receiver, receiving
from tests.support.whole import verify_files

CONFIG = """
dispatch_every = 0.02
sweep_every = 0.1

[receiver.bank]
url = "{bank.url}"
contract = "idempotent"
window = {window}

[receiver.post]
url = "{post.url}"

[lane.payouts]
receiver = "bank"
attempts = 2
backoff = 0.01
backoff_cap = 0.01

[lane.letters]
receiver = "post"
attempts = 1

[lane.mail]
effect = "internal"
handler = "tests.support.handlers:told"
attempts = 1

[lifecycle.order]
initial = "draft"

[lifecycle.order.actions.pay]
from = ["draft"]
to = "draft"
releases = ["payouts"]

[lifecycle.order.actions.write]
from = ["draft"]
to = "draft"
releases = ["letters"]

[lifecycle.order.actions.remind]
from = ["draft"]
to = "draft"
commands = [{{ name = "remind", lane = "mail" }}]
"""


class Shop:
    """The server and its receivers."""

    def __init__(self, folder: Path, bank: Receiver, post: Receiver, window: float) -> None:
        self.bank, self.post = bank, post
        self.server = Server(folder / "server")
        config = CONFIG.format(bank=bank, post=post, window=window)
        (self.server.folder / "unrewind.toml").write_text(config)
        self.server.start()

    def decide(self, name: str, action: str, **body: Any) -> str:
        """Decide it of an order of its own; what follows from it."""
        reply = self.server.decide(
            f"{action}-{name}", f"order/{name}", action, version="v1", body=body
        )
        assert reply.status == 201, reply.body
        made: list[str] = reply.json["releases"] + reply.json["commands"]
        return made[0]

    def row(self, identity: str) -> dict[str, Any]:
        kind = "releases" if identity.startswith("rel_") else "commands"
        return dict(self.server.get(f"{kind}/{identity}").json)

    def comes_to(self, identity: str, status: str) -> dict[str, Any]:
        self.server.wait_for(lambda: self.row(identity)["status"] == status)
        return self.row(identity)

    def handle(self, what: str, **chosen: Any) -> dict[str, Any]:
        reply = self.server.post(f"dead-letters/{what}", {"reason": "a test", **chosen})
        assert reply.status == 200, reply.body
        return dict(reply.json)

    @property
    def letters(self) -> list[str]:
        return [row["id"] for row in self.server.get("dead-letters").json["items"]]

    def raised(self) -> str:
        text = self.server.request("GET", "/metrics").body.decode()
        return text.partition('unrewind_alerts_total{kind="dead-letter"} ')[2].partition("\n")[0]


@pytest.fixture
def window() -> float:
    return 86400.0


@pytest.fixture
def shop(tmp_path: Path, window: float) -> Iterator[Shop]:
    with (
        receiving(tmp_path / "bank") as bank,
        receiving(tmp_path / "post", contract="opaque") as post,
    ):
        made = Shop(tmp_path, bank, post, window)
        try:
            yield made
        finally:
            assert made.server.end() == 0
            assert "Traceback" not in made.server.errors, made.server.errors
        assert verify_files(made.server.settings) == []


def test_l8_a_dead_letter_that_is_replayed_twice_acts_once(shop: Shop) -> None:
    shop.bank.tell("error", status=500)
    release = shop.decide("1", "pay")
    row = shop.comes_to(release, "dead")
    assert "answered 500" in row["last_error"]
    assert shop.letters == [release]
    shop.server.wait_for(lambda: shop.raised() == "1.0")
    shop.bank.clear()
    first = shop.handle("replay", ids=[release, release])
    assert first["done"] == [release]
    shop.comes_to(release, "done")
    again = shop.handle("replay", lane="payouts")
    assert again["done"] == []
    assert list(shop.handle("replay", ids=[release])["left"]) == [release]
    assert [call["attempt"] for call in shop.bank.calls(release)] == [1, 2, 3]
    assert shop.bank.executions(release) == 1
    assert shop.letters == []


def test_r23_what_an_opaque_receiver_may_have_done_is_settled_not_replayed(shop: Shop) -> None:
    shop.post.tell("lose-reply", calls=1)
    release = shop.decide("1", "write")
    row = shop.comes_to(release, "unknown")
    assert row["due"] is None
    assert shop.handle("replay", ids=[release])["done"] == []
    said = {"happened": True, "evidence": "the customer has it", "receipt": "r-1"}
    assert shop.server.post(f"releases/{release}/settle", said).status == 200
    assert shop.comes_to(release, "done")["receipt"] == "r-1"
    assert shop.post.attempts(release) == 1


# Three seconds longer than a call may take: it has to arrive within the window.
@pytest.mark.parametrize("window", [13.0])
def test_a_dead_letter_is_not_replayed_once_its_id_is_forgotten(shop: Shop) -> None:
    shop.bank.tell("error", status=500, execute=True)
    release = shop.decide("1", "pay")
    shop.comes_to(release, "dead")
    shop.bank.clear()
    calls = shop.bank.attempts(release)
    shop.server.wait_for(lambda: seconds_old(shop.row(release)) > 3.0)
    left = shop.handle("replay", ids=[release])["left"]
    assert "it may have happened" in left[release]
    assert (shop.bank.attempts(release), shop.bank.executions(release)) == (calls, 1)


def seconds_old(row: dict[str, Any]) -> float:
    return (datetime.now(UTC) - datetime.fromisoformat(row["committed"])).total_seconds()


def test_a_dead_letter_that_is_drained_is_not_run_again(shop: Shop) -> None:
    dead = shop.decide("1", "remind", fail=True)
    assert shop.comes_to(dead, "dead")["last_error"] == "ValueError: told to fail"
    shop.comes_to(shop.decide("2", "remind", fail=False), "done")
    assert shop.letters == [dead]
    assert shop.handle("drain", lane="mail")["done"] == [dead]
    assert list(shop.handle("replay", ids=[dead])["left"]) == [dead]
    assert shop.row(dead)["status"] == "drained"
    assert shop.letters == []


def test_a_dead_letter_of_one_kind_holds_up_nothing_else(shop: Shop) -> None:
    shop.bank.kill()
    letter = shop.decide("1", "pay")
    assert "no connection could be made" in shop.comes_to(letter, "dead")["last_error"]
    shop.comes_to(shop.decide("2", "write"), "done")
    shop.bank.start()
    # It surely never left, so it would be safe to replay for any receiver.
    shop.handle("replay", lane="payouts")
    shop.comes_to(letter, "done")
    assert shop.bank.executions(letter) == 1
