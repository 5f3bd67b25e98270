"""`unrewind recover reconcile` and `findings`, as a user starts them."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from api.opening import writing
from journal import load_settings, permits, reports
from journal.outcomes import CALLING
from journal.permits import Asked
from journal.reports import Beating
from journal.worker import drive
from tests.support import receivers

CONFIG = """
[receiver.bank]
url = "{base}/releases"
status_url = "{base}/status/{{release}}"
contract = "queryable"
window = 86400
timeout = 5

[lane.transfers]
receiver = "bank"

[lane.letters]

[lifecycle.order.actions.pay]
from = ["draft", "going"]
to = "going"
releases = ["transfers"]

[lifecycle.order.actions.write]
from = ["draft", "going"]
to = "going"
releases = ["letters"]
"""


@pytest.fixture
def bank(tmp_path: Path) -> Iterator[receivers.Receiver]:
    with receivers.receiving(tmp_path / "bank", contract="queryable") as running:
        yield running


def attempt(cli, lane: str) -> str:
    """Claim the next release of a lane and come as far as its call; its ID."""
    settings = load_settings(cli.home / "unrewind.toml", {"data": str(cli.home / "data")}, {})
    with writing(settings) as record:
        (permit,) = drive(permits.claim(record, Asked(lane, "w", f"claim-{lane}"))).permits
        drive(reports.beat(record, Beating(lane, [(permit.id, permit.lease)], CALLING)))
    return permit.id


def test_a_receipt_is_recorded_and_what_nobody_can_tell_is_held_with_its_owner(cli, bank):
    config = cli.home / "unrewind.toml"
    config.write_text(config.read_text() + CONFIG.format(base=bank.base))
    cli.accept("op-1", "order/1", "pay", "--version", "v1")
    cli.accept("op-2", "order/2", "write", "--version", "v1")
    paid, written = attempt(cli, "transfers"), attempt(cli, "letters")
    assert bank.send(paid, 1, receivers.body_of(paid, digest=None)).status == 200
    assert cli("recover", "begin", "--wait", "0").code == 0
    cli("recover", "reconcile").complains(3, "unrewind recover apply")
    assert cli("recover", "apply").code == 0

    bank.kill()
    mute = cli("recover", "reconcile")
    assert mute.code == 1
    assert "unreachable: bank gave no usable answer about 1" in mute.out
    assert mute.out.endswith("next: unrewind recover reconcile\n")
    assert cli("recover", "reopen", "--to", "open").code == 3

    bank.start()
    done = cli("recover", "reconcile", "--json")
    assert done.code == 1  # one is held
    assert done.json["counts"] == {"confirmed": 1, "held": 1}
    assert done.json["complete"]
    held = cli("recover", "findings", "--found", "held", "--json")
    assert held.code == 1
    (item,) = held.json["items"]
    assert (item["id"], item["evidence"]["owner"]) == (written, "operator")
    shown = cli("recover", "findings", "--found", "confirmed")
    assert (shown.code, shown.err) == (0, "")
    assert paid in shown.out
    assert cli("recover", "reopen").code == 0
    assert cli.status()["stage"] == "open"
    assert bank.attempts() == 1
    assert cli.verified()["verdict"] == "clean"


def test_flags_that_make_no_sense_are_usage_errors(cli):
    cli.accept("op-1")
    for words in (("--limit", "0"), ("--rate", "-1"), ("--limit", "many")):
        cli("recover", "reconcile", *words).complains(2)
    cli("recover", "findings", "--found", "lost").complains(2)
    cli("recover", "findings", "--after", "nonsense").complains(2, "cursor")
    cli("recover", "reconcile", "--data", "elsewhere").complains(3, "no tenant")
