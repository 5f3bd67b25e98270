"""A server with lanes of every kind. Its dispatcher rests: tests do what it would."""

import base64
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from api.opening import writing
from journal import permits, reports
from journal.outcomes import Outcome, Reported
from journal.permits import Asked, Permit
from journal.record import Record
from journal.worker import drive
from tests.api.servers import CONFIG, Reply, Server
from tests.support.whole import verify_files

CALLBACK_SECRET = "whsec_" + base64.b64encode(b"a secret that signs the callbacks").decode()
OTHER_SECRET = "whsec_" + base64.b64encode(b"a secret that is another one's").decode()

LANES = (
    CONFIG
    + """
[receiver.courier]
url = "http://127.0.0.1:9/deliveries"
status_url = "http://127.0.0.1:9/deliveries/{release}"
contract = "queryable"
window = 86400
callback_secret_env = "COURIER_CALLBACK_SECRET"

[receiver.carrier]
url = "http://127.0.0.1:9/loads"
status_url = "http://127.0.0.1:9/loads/{release}"
contract = "queryable"
window = 86400
callback_secret_env = "CARRIER_CALLBACK_SECRET"

[receiver.mute]
url = "http://127.0.0.1:9/mute"

[receiver.blunt]
url = "http://127.0.0.1:9/blunt"
callback_secret_env = "COURIER_CALLBACK_SECRET"

[lane.parcels]
receiver = "courier"

[lane.loads]
receiver = "carrier"

[lane.silent]
receiver = "blunt"

[lane.payments]
contract = "idempotent"
window = 86400
attempts = 2
backoff = 0.001
backoff_cap = 0.001
concurrency = 64

[lane.transfers]
concurrency = 64

[lane.narrow]
limit = 1

[lane.mail]
effect = "internal"
attempts = 1
concurrency = 64

[lane.hooks]
effect = "internal"
handler = "operator:truth"

[lane.stats]
effect = "best-effort"
attempts = 1
concurrency = 64

[lifecycle.order]
initial = "draft"

[lifecycle.order.actions.approve]
from = ["draft", "approved"]
to = "approved"

[lifecycle.order.actions.ship]
from = ["approved"]
to = "approved"
releases = ["parcels"]

[lifecycle.order.actions.load]
from = ["approved"]
to = "approved"
releases = ["loads"]

[lifecycle.order.actions.whisper]
from = ["approved"]
to = "approved"
releases = ["silent"]

[lifecycle.order.actions.pay]
from = ["approved"]
to = "approved"
releases = ["payments"]

[lifecycle.order.actions.transfer]
from = ["approved"]
to = "approved"
releases = ["transfers"]

[lifecycle.order.actions.squeeze]
from = ["approved"]
to = "approved"
releases = ["narrow"]

[lifecycle.order.actions.remind]
from = ["approved"]
to = "approved"
commands = [{ name = "remind", lane = "mail" }]
"""
)

UNSET = """
[receiver.unset]
url = "http://127.0.0.1:9/unset"
callback_secret_env = "A_VARIABLE_THAT_NOBODY_SET"
"""
"""A receiver with which no dispatcher would start."""


class Laned(Server):
    """A server with these lanes."""

    def __init__(self, folder: Path, **environment: str) -> None:
        told = {
            "UNREWIND_DISPATCH": "false",
            "COURIER_CALLBACK_SECRET": CALLBACK_SECRET,
            "CARRIER_CALLBACK_SECRET": OTHER_SECRET,
        }
        super().__init__(folder, **{**told, **environment})
        (folder / "unrewind.toml").write_text(LANES)

    def permit(self, name: str, action: str = "transfer", **body: Any) -> str:
        """Approve an order and permit an effect of it; the release's ID."""
        approved = self.decide(f"{name}-approve", f"order/{name}", "approve", body=body or None)
        assert approved.status == 201, approved.body
        permitted = self.decide(f"{name}-{action}", f"order/{name}", action, version="v1")
        assert permitted.status == 201, permitted.body
        (release,) = permitted.json["releases"]
        return str(release)

    def claim(self, lane: str, operation: str | None = None, **fields: Any) -> Reply:
        if operation is not None:
            fields["operation"] = operation
        return self.post(f"lanes/{lane}/claim", {"worker": "w", **fields})

    def claimed(self, lane: str) -> dict[str, Any]:
        """The one permit that a claim of the lane gives."""
        reply = self.claim(lane)
        assert reply.status == 200, reply.body
        (permit,) = reply.json["permits"]
        return dict(permit)

    def claims(self, lane: str, count: int) -> list[dict[str, Any]]:
        """So many permits, one claim after another, as the work becomes due."""
        found: list[dict[str, Any]] = []

        def enough() -> bool:
            reply = self.claim(lane)
            assert reply.status == 200, reply.body
            found.extend(reply.json["permits"])
            return len(found) >= count

        self.wait_for(enough)
        return found

    def report(self, permit: dict[str, Any], outcome: str, **fields: Any) -> Reply:
        said = {"lease": permit["lease"], "outcome": outcome, **fields}
        return self.post(f"releases/{permit['id']}/outcome", said)

    def release(self, release: str) -> dict[str, Any]:
        reply = self.get(f"releases/{release}")
        assert reply.status == 200, reply.body
        return dict(reply.json)

    def write(self, function: Callable[..., Coroutine[Any, Any, Any]], *args: Any) -> Any:
        """Do in this process, beside the server, what its dispatcher would."""

        async def work(record: Record) -> Any:
            return await function(record, *args)

        with writing(self.settings) as record:
            return drive(work(record))

    def attempt(self, lane: str, outcome: Outcome) -> Permit:
        """An attempt of the lane's next release, as the dispatcher makes one."""
        claimed = self.write(permits.claim, Asked(lane, "push:test:0", f"claim-{lane}-{outcome}"))
        (permit,) = claimed.permits
        self.write(reports.report, Reported(permit.id, outcome, permit.lease))
        return permit


@contextmanager
def serving(folder: Path, config: str = LANES, **environment: str) -> Iterator[Laned]:
    """A running server, verified whole when it has ended."""
    running = Laned(folder, **environment)
    (folder / "unrewind.toml").write_text(config)
    try:
        running.start()
        yield running
    finally:
        assert running.end() == 0
        assert "Traceback" not in running.errors, running.errors
    assert verify_files(running.settings) == []


def pages(server: Server, path: str, limit: int) -> list[dict[str, Any]]:
    """Every item of a list, page by page."""
    found: list[dict[str, Any]] = []
    after: str | None = ""
    mark = "&" if "?" in path else "?"
    while after is not None:
        page = server.get(f"{path}{mark}limit={limit}" + (after and f"&after={after}"))
        assert page.status == 200, page.body
        assert len(page.json["items"]) <= limit
        found += page.json["items"]
        after = page.json["next"]
    return found
