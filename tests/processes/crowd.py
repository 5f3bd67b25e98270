"""Several `unrewind serve` of one tenant, each with a data directory of its own, under load."""

from __future__ import annotations

import json
import random
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from datetime import datetime
from http.client import HTTPException
from pathlib import Path
from typing import Any

from api.client import Abandoned, ClaimLost, Client, NotReported, Refused
from tests.soak.clients import Client as Plain
from tests.soak.effects import DOCUMENT, Running, free_port
from tests.soak.ledger import Ledger
from tests.soak.processes import Server, Site, item, until
from tests.support.receivers import Receiver, receiving

PUSHED, RATED, PULLED = "pushed", "rated", "pulled"
RATE = 2.0
LOCK, LEASE, SWEEP, ALIVE = 1.5, 1.0, 1.5, 2.0
PAUSED = 3.0
"""Seconds that outlast the turn lock, every claim, and a leader's lease."""

_CONFIG = f"""
store = "{{store}}"
journal = "{{journal}}"
accept = ["nats-sync-interval", "nats-single-server"]
lock_timeout = {LOCK}
alive_for = {ALIVE}
handoff_every = 0.5
sweep_every = 1.0
dispatch_every = 0.5
{DOCUMENT.replace("{", "{{").replace("}", "}}")}
[lifecycle.document.actions.release]
from = ["approved"]
to = "approved"
needs_version = true
releases = ["{PUSHED}", "{RATED}", "{PULLED}"]

[receiver.exact]
url = "{{exact}}"
contract = "queryable"
status_url = "{{lookup}}"
window = 86400
timeout = 0.5
works = 0.5
poll = 0.2

[receiver.slow]
url = "{{slow}}"
contract = "idempotent"
window = 86400
timeout = 0.5
works = 0.5
"""
_LANE = f"""
[lane.{{name}}]
{{more}}
timeout = 0.5
lease = {LEASE}
sweep_after = {SWEEP}
cap = 4
attempts = 40
backoff = 0.05
backoff_cap = 0.3
concurrency = 8
owner = "ines"
"""
_OTHERS = ("control/", "observation/")


class Crowd:
    """The servers, each of its own site, what they send to, and what they told."""

    def __init__(self, sites: Sequence[Site], receivers: dict[str, Receiver]) -> None:
        self.sites = sites
        self.receivers = receivers
        self.ports = [free_port() for _ in sites]
        self.servers: list[Server] = []
        for number, site in enumerate(sites):
            site.token = sites[0].token
            server = Running(site, "serve", "--port", str(self.ports[number]))
            self.servers.append(server)
            server.wait_until_ready()
        self.ledger = Ledger()
        self.pulled: list[str] = []

    def any_but(self, *servers: Server) -> Server:
        return next(server for server in self.servers if server not in servers)

    def revive(self, number: int) -> Server:
        """Start a server anew over its site, on the port that it had."""
        self.servers[number] = Running(
            self.sites[number], "serve", "--port", str(self.ports[number])
        )
        self.servers[number].wait_until_ready()
        return self.servers[number]

    # Who leads.

    def leader(self, *, beside: Server | None = None) -> Server | None:
        """The server that leads, as another one says; never are there two."""
        server = self.any_but(*([] if beside is None else [beside]))
        leads = [one for one in server.get("status")[1]["processes"] if one["leads"]]
        assert len(leads) <= 1, leads
        pids = {int(one["name"].rpartition(":")[2]) for one in leads}
        return next((server for server in self.servers if server.pid in pids), None)

    def new_leader(self, old: Server) -> Server:
        """Wait until another server leads."""

        def found() -> Server | None:
            leader = self.leader(beside=old)
            return None if leader is old else leader

        leader: Server = until("another one leads", found)
        return leader

    # In the end.

    def rows(self) -> dict[str, dict[str, Any]]:
        """Every release by its ID."""
        found: dict[str, dict[str, Any]] = {}
        after = ""
        while True:
            status, page = self.servers[0].get(f"releases?limit=500{after}")
            assert status == 200, page
            found.update({row["id"]: row for row in page["items"]})
            if not page.get("next"):
                return found
            after = f"&after={page['next']}"

    def quiet(self) -> bool:
        """Whether no release moves on by itself any more, but for those that a rate holds up."""
        return not any(
            row["status"] in {"ready", "running", "retry", "pending"}
            or (row["status"] == "unknown" and row["due"] is not None)
            for row in self.rows().values()
            if row["lane"] != RATED
        )

    def check(self) -> None:
        """Nothing acknowledged is lost, nothing is there twice, and no order has a hole."""
        for operation in [*self.ledger.told, *self.ledger.unsettled]:
            server = random.choice(self.servers)
            made = self.ledger.sent[operation]
            self.ledger.hear(operation, *server.ask("POST", "/v1/main/decisions", made))
        feeds = [self.feed(server) for server in self.servers]
        whole = max(feeds, key=len)
        # The lane with a rate goes on meanwhile.
        assert all(feed == whole[: len(feed)] for feed in feeds)
        held = {entry["operation"]: digest for digest, entry in whole}
        assert len(held) == len(whole)
        sequences = [entry["sequence"] for _, entry in whole]
        assert sequences == [*range(1, len(sequences) + 1)]
        revisions: Counter[str] = Counter()
        for _, entry in whole:
            revisions[entry["entity"]] += 1
            assert entry["revision"] == revisions[entry["entity"]], entry
        for operation, told in self.ledger.told.items():
            assert held[operation] == told["digest"], operation
        report = self.sites[0].do("verify")
        assert (report["verdict"], report["findings"]) == ("clean", [])

    def feed(self, server: Server) -> list[tuple[str, dict[str, Any]]]:
        """Digest and envelope of every decision, as a server's feed has them."""
        found: list[tuple[str, dict[str, Any]]] = []
        after = ""
        while True:
            status, page = server.get(f"entries?limit=1000{after}")
            assert status == 200, page
            entries = [(one["digest"], json.loads(one["envelope"])) for one in page["entries"]]
            found += [one for one in entries if not one[1]["entity"].startswith(_OTHERS)]
            if not entries and after == f"&after={page['next']}":
                return found
            after = f"&after={page['next']}"

    def check_effects(self) -> None:
        """No release happened twice, and what is done did happen."""
        rows = self.rows()
        happened = Counter(self.pulled)
        for receiver in self.receivers.values():
            happened.update(line["release"] for line in receiver.lines() if line["executed"])
        assert not [release for release, times in happened.items() if times > 1]
        for identity, row in rows.items():
            if row["status"] == "done":
                assert happened[identity] == 1, row

    def check_rate(self) -> None:
        """All processes together committed to no more than the lane's rate lets out."""
        rows = [row for row in self.rows().values() if row["lane"] == RATED and row["committed"]]
        times = sorted(datetime.fromisoformat(row["committed"]) for row in rows)
        seconds = (times[-1] - times[0]).total_seconds()
        assert len(times) <= RATE * (seconds + 1) + RATE, (len(times), seconds)


class Load:
    """Clients that take documents from draft to release, and workers that pull, at any server.

    Who is not answered in time repeats the same operation ID at another one.
    """

    def __init__(self, crowd: Crowd, name: str, *, clients: int = 4, pullers: int = 2) -> None:
        self.crowd, self.name = crowd, name
        self.released = 0
        self._decided, self._over = threading.Event(), threading.Event()
        self._lock = threading.Lock()
        self._wrong: list[BaseException] = []
        runs = [(self._decide_all, number) for number in range(clients)]
        runs += [(self._pull_all, number) for number in range(pullers)]
        self._threads = [threading.Thread(target=self._run, args=run) for run in runs]
        for thread in self._threads:
            thread.start()

    def more(self, count: int = 4) -> None:
        """Let it go on until so many more documents were released."""
        before = self.released
        until("more is released", lambda: self._wrong or self.released >= before + count)

    def end(self) -> None:
        """Decide no more, and pull until everything is quiet."""
        self._decided.set()
        try:
            until("everything is quiet", lambda: self._wrong or self.crowd.quiet())
        finally:
            self._over.set()
        for thread in self._threads:
            thread.join()
        if self._wrong:
            raise self._wrong[0]

    def _run(self, work: Any, number: int) -> None:
        try:
            work(number)
        except BaseException as error:  # noqa: BLE001 - told by `end`, in the test's own thread
            self._wrong.append(error)

    def _decide_all(self, number: int) -> None:
        chance, made = random.Random(number), 0
        while not self._decided.is_set():
            made += 1
            entity = f"document/{self.name}-{number}-{made}"
            for action in ("submit", "approve", "release"):
                if not self._decide(chance, f"{entity}/{action}", entity, action):
                    return
            self.released += 1

    def _decide(self, chance: random.Random, operation: str, entity: str, action: str) -> bool:
        fields = {} if action == "submit" else {"version": "v1"}
        with self._lock:
            made = self.crowd.ledger.send(item(operation, entity, action, **fields))
        while not self._over.is_set():
            server = chance.choice(self.crowd.servers)
            with suppress(OSError, HTTPException):
                client = Plain(server.port, server.site.token)
                client.connection.timeout = 2.0
                with client:
                    client.send("POST", "/v1/main/decisions", made)
                    status, answer = client.receive()
                with self._lock:
                    self.crowd.ledger.hear(operation, status, answer)
                assert status != 409, answer
                if status in {200, 201}:
                    return True
            self._over.wait(0.05)
        return False

    def _pull_all(self, number: int) -> None:
        chance = random.Random(100 + number)
        while not self._over.is_set():
            server = chance.choice(self.crowd.servers)
            with (
                suppress(Abandoned, ClaimLost, NotReported, Refused),
                Client(
                    f"http://127.0.0.1:{server.port}", server.site.token, timeout=2, deadline=2
                ) as client,
                client.permit(PULLED, worker=f"puller-{number}") as permit,
            ):
                if permit is not None:
                    permit.check()
                    self.crowd.pulled.append(permit.id)
                    permit.confirm(receipt=f"pulled by {number}")
            self._over.wait(0.05)


@contextmanager
def crowded(folder: Path, store: str, journal: str, count: int = 4) -> Iterator[Crowd]:
    """A crowd over a new store and journal; everything is gone when the block ends."""
    with ExitStack() as stack:
        exact = stack.enter_context(receiving(folder / "exact", contract="queryable"))
        slow = stack.enter_context(receiving(folder / "slow"))
        text = _CONFIG.format(
            store=store, journal=journal, exact=exact.url, lookup=exact.status_url, slow=slow.url
        )
        text += _LANE.format(name=PUSHED, more='receiver = "exact"')
        text += _LANE.format(name=RATED, more=f'receiver = "slow"\nrate = {RATE}')
        text += _LANE.format(name=PULLED, more="")
        sites = [Site(folder / f"machine-{number}", text) for number in range(count)]
        for site in sites:
            stack.callback(site.close)
        yield Crowd(sites, {PUSHED: exact, RATED: slow})
