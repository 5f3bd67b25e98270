"""R6: on a server the application's tables stay as they are; they are replayed, not put back."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from journal.detection import Verdict
from tests.reconstruct.engines.world import ServerScene, World
from tests.reconstruct.test_projections import WALLET
from tests.support.tenants import LIFECYCLES, operation

pytestmark = pytest.mark.engines


class Wallets(ServerScene):
    """Embedded entities with tables of their own in the store's database."""

    def pay(self, wallet: str, amount: int, **more: object) -> None:
        self.submit(operation(f"wallet/{wallet}", "pay", {"amount": amount, **more}))

    def rows(self) -> list[tuple[object, ...]]:
        url = self.world.store_url
        assert url is not None
        return [
            *self.world.sql(url, "SELECT * FROM owners ORDER BY id"),
            *self.world.sql(url, "SELECT * FROM postings ORDER BY owner, revision"),
        ]


@pytest.fixture
def wallets(store_url: str, tmp_path: Path) -> Iterator[Wallets]:
    lifecycles = {**LIFECYCLES, "wallet": WALLET}
    made = Wallets(World("postgres-sqlite", tmp_path, store_url, None, lifecycle=lifecycles))
    try:
        for name in ("a", "b"):
            made.pay(name, 1, name=f"title of {name}")
        yield made
    finally:
        made.close()


def test_r6_a_store_that_is_put_back_beside_newer_rows_of_the_application(
    wallets: Wallets, tmp_path: Path
) -> None:
    """Inserts that would fail if they were done twice; a title given up and taken by another."""
    older = wallets.keep(tmp_path / "older")
    wallets.pay("a", 2, name="another")
    wallets.pay("c", 3, name="title of a")
    wallets.pay("b", 4)
    wallets.settle()
    rows, state = wallets.rows(), wallets.digest()
    wallets.restore(older)
    # What the application keeps was not put back.
    assert wallets.rows() == rows
    assert wallets.detect() is Verdict.REWOUND
    plan = wallets.plan()
    assert (plan.missing, plan.rebuild) == (3, ["wallet/a", "wallet/b", "wallet/c"])
    done = wallets.recover()
    assert done.incomplete == []
    assert wallets.rows() == rows
    assert wallets.digest() == state
    wallets.pay("c", 5)
    wallets.repeats()
    wallets.whole()
    assert wallets.plan().rebuild == []


def test_r6_rows_of_what_only_the_replaced_store_knew_are_cleared(
    wallets: Wallets, tmp_path: Path
) -> None:
    wallets.settle()
    older = wallets.keep(tmp_path / "older")
    rows, state = wallets.rows(), wallets.digest()
    wallets.local_only(operation("wallet/never", "pay", {"amount": 9}))
    assert wallets.rows() != rows
    wallets.restore(older)
    wallets.recover()
    assert wallets.rows() == rows
    assert wallets.digest() == state
    wallets.whole()


def test_r6_a_store_rebuilt_from_nothing_replays_the_applications_rows(wallets: Wallets) -> None:
    wallets.pay("a", 2, name="another")
    wallets.pay("c", 3, name="title of a")
    wallets.settle()
    rows, state = wallets.rows(), wallets.digest()
    wallets.close()
    wallets.world.drop_store()
    wallets.open()
    assert wallets.plan().fresh_store
    done = wallets.recover()
    assert done.incomplete == []
    assert wallets.rows() == rows
    assert wallets.digest() == state
    wallets.repeats()
    wallets.whole()
