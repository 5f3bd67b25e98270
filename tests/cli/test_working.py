"""Releases, lanes, dead letters and the sweeper, from the files alone."""

import json
import re
import signal
import socket
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from api.opening import writing
from journal.handling import enqueue
from journal.observing import observe
from journal.outcomes import Outcome, Reported
from journal.permits import Asked, claim
from journal.reports import report
from journal.settings import load
from journal.worker import drive

ROOT = Path(__file__).resolve().parents[2]

LANES = """
[lifecycle.case]
kind = "free"

[lane.delivery]
timeout = 0.01
lease = 0.02
sweep_after = 0.03
cap = 9
attempts = 2
backoff = 0.001
owner = "treasury"

[lane.mail]
effect = "best-effort"
attempts = 1
"""

KILLED = """
import sys, time
from journal.permits import Asked, claim
from journal.record import Record
from journal.settings import load
from journal.worker import drive
record = Record(load("unrewind.toml"))
drive(record.open(create=False))
done = drive(claim(record, Asked("delivery", "doomed", "claim-doomed", 9)))
print(len(done.permits), flush=True)
time.sleep(600)
"""


class Lanes:
    """A tenant with releases, and a worker of its lanes in this process."""

    def __init__(self, cli) -> None:
        self.cli = cli
        (cli.home / "unrewind.toml").write_text(LANES)
        self.store = cli.home / "data/store/main.db"

    @property
    def settings(self):
        data = {"data": str(self.cli.home / "data")}
        return load(self.cli.home / "unrewind.toml", data, {})

    def release(self, name: str = "1") -> str:
        """Permit a release of the document of this name; its ID."""
        words = ("--version", "v1")
        entity = f"document/{name}"
        data = json.dumps({"recipient": f"to {name}"})
        self.cli.accept(f"submit-{name}", entity, "submit", *words, "--body", data)
        self.cli.accept(f"approve-{name}", entity, "approve", *words)
        return self.cli.accept(f"release-{name}", entity, "release", *words)["releases"][0]

    def work(self, function, *args):
        with writing(self.settings) as record:
            return drive(function(record, *args))

    def claim(self, operation: str, lane: str = "delivery"):
        return self.work(claim, Asked(lane, "worker", operation, 9)).permits

    def fail(self, identity: str, lane: str = "delivery") -> None:
        """Spend the budget of attempts."""
        for number in range(9):
            for permit in self.claim(f"claim-{identity}-{number}", lane):
                said = Reported(permit.id, Outcome.FAILED, permit.lease, evidence="no route")
                self.work(report, said)
            if self.status(identity) == "dead":
                return
        pytest.fail(f"{identity} is not dead")

    def status(self, identity: str) -> str:
        return self.show(identity)["status"]

    def show(self, identity: str) -> dict:
        return self.cli("releases", "show", identity, "--json").json

    def sql(self, statement: str, *parameters):
        with closing(sqlite3.connect(self.store)) as file:
            found = file.execute(statement, parameters).fetchall()
            file.commit()
        return found

    def over(self) -> bool:
        """Whether the time of every claim is over."""
        left = (
            "SELECT count(*) FROM unrewind_work WHERE status = 'running'"
            " AND sweep_at > strftime('%Y-%m-%dT%H:%M:%f000Z', 'now')"
        )
        return self.sql(left)[0][0] == 0


@pytest.fixture
def lanes(cli) -> Lanes:
    return Lanes(cli)


@pytest.fixture
def serving(cli):
    """Start a server over the tenant; stopped when the test ends."""
    started = []

    def start():
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        server = cli.start("serve", "--port", port)
        started.append(server)
        while b"serves" not in (line := server.stdout.readline()):
            assert line, server.stderr.read()
        return server

    yield start
    for server in started:
        server.send_signal(signal.SIGCONT)
        server.kill()
        server.communicate(timeout=60)


# Releases.


def test_releases_are_listed_without_naming_the_command(cli, lanes):
    one, two = lanes.release("1"), lanes.release("2")
    done = cli("releases", "--json")
    assert done.code == 0
    assert [item["id"] for item in done.json["items"]] == [one, two]
    assert cli("--json", "releases", "list").json == done.json
    assert cli("releases", "--lane", "delivery", "--json").json == done.json
    assert cli("releases", "--data", "data", "--json").json == done.json
    found = cli("releases", "--entity", "document/2", "--status", "ready", "--json").json["items"]
    assert [item["id"] for item in found] == [two]
    assert cli("releases", "--status", "done").out == "nothing to list\n"
    first = cli("releases", "--limit", "1", "--json").json
    assert [item["id"] for item in first["items"]] == [one]
    rest = cli("releases", "--after", first["next"], "--json").json
    assert [item["id"] for item in rest["items"]] == [two]
    lines = cli("releases", "--limit", "1").out.splitlines()
    assert lines[0].split("\t")[:4] == ["id", "lane", "kind", "status"]
    assert lines[1].split("\t")[:4] == [one, "delivery", "release", "ready"]
    assert lines[2].startswith("more: --after ")


def test_show_tells_everything_and_what_comes_next(cli, lanes):
    one = lanes.release()
    done = cli("releases", "show", one)
    assert done.code == 0
    assert "recipient: to 1\n" in done.out
    assert "owner: treasury\n" in done.out
    assert "next: a worker claims it, from " in done.out
    assert cli("releases", "--json", "show", one).json["id"] == one
    cli("releases", "show", "rel_none").complains(2, "rel_none")


def test_cancelling_before_the_commitment_withdraws_it(cli, lanes):
    one = lanes.release()
    done = cli("releases", "cancel", one, "--reason", "wrong recipient", "--json")
    assert done.code == 0, done
    assert done.json["status"] == "cancelled"
    assert done.json["acceptance"]["entity"] == "document/1"
    assert lanes.claim("claim-1") == []
    entry = cli("history", "document/1", "--json").json["revisions"][-1]
    assert entry["action"] == "release.cancelled"
    assert cli("releases", "cancel", one, "--reason", "wrong recipient").code == 0


def test_l10_cancelling_after_the_commitment_only_asks(cli, lanes):
    one = lanes.release()
    permit = lanes.claim("claim-1")[0]
    done = cli("releases", "cancel", one, "--reason", "too late?", "--json")
    assert done.code == 0
    assert done.json["status"] == "cancel-requested"
    assert lanes.show(one)["cancel_requested"] is True
    assert cli("verify").code == 0
    said = Reported(one, Outcome.CONFIRMED, permit.lease, receipt="T-1")
    assert lanes.work(report, said).status == "done"
    assert cli("releases", "cancel", one, "--reason", "now").code == 3


def test_an_unknown_is_a_finding_until_a_person_settles_it(cli, lanes, eventually):
    one, two = lanes.release("1"), lanes.release("2")
    lanes.claim("claim-1")
    assert cli("releases").code == 0
    eventually(lanes.over)
    assert cli("sweep").code == 0
    found = cli("releases", "--status", "unknown")
    assert found.code == 1
    assert one in found.out
    shown = cli("releases", "show", one)
    assert shown.code == 1
    assert f"treasury finds out, then says `unrewind releases settle {one} --happened`" in shown.out

    cli("releases", "settle", one, "--evidence", "x").complains(2, "--did-not-happen")
    words = ("--evidence", "the statement of 3 May", "--json")
    done = cli("releases", "settle", one, "--happened", "--receipt", "T-7", *words)
    assert done.code == 0, done
    assert (done.json["status"], done.json["acceptance"]["state"]) == ("done", "released")
    assert lanes.show(one)["receipt"] == "T-7"
    cli("releases", "settle", one, "--did-not-happen", *words).complains(3, "is done")

    done = cli("releases", "settle", two, "--did-not-happen", *words)
    assert (done.json["status"], done.json["acceptance"]["state"]) == ("refused", "approved")
    assert cli("releases").code == 0
    assert cli("verify").code == 0


def test_what_is_under_way_is_not_settled(cli, lanes):
    (cli.home / "unrewind.toml").write_text('[lifecycle.case]\nkind = "free"\n')
    one = lanes.release()
    lanes.claim("claim-1")
    cli("releases", "settle", one, "--happened", "--evidence", "x").complains(3, "under way")


def test_an_incident_is_recorded_and_changes_no_status(cli, lanes):
    one = lanes.release()
    permit = lanes.claim("claim-1")[0]
    lanes.work(report, Reported(one, Outcome.CONFIRMED, permit.lease))
    done = cli("releases", "incident", one, "--reason", "sent twice", "--json")
    assert (done.code, done.json["status"]) == (0, "done")
    assert lanes.show(one)["incident"] == "sent twice"


def test_commands_and_items_are_listed_apart_from_releases(cli, lanes):
    lanes.release()
    lanes.work(enqueue, "mail", "notice", [("1", b'{"to": "ines"}'), ("2", b"{}")])
    done = cli("commands", "--json")
    assert done.code == 0
    assert [item["id"] for item in done.json["items"]] == ["item_mail_1", "item_mail_2"]
    assert cli("commands", "--limit", "1").out.count("\n") == 3
    assert len(cli("releases", "--json").json["items"]) == 1
    cli("commands", "--lane", "delivery").complains(2, "delivery")


# Lanes.


def test_a_paused_lane_holds_what_waits_until_it_is_resumed(cli, lanes):
    lanes.release()
    assert cli("lanes").code == 0
    done = cli("lanes", "pause", "delivery", "--reason", "bank maintenance", "--json")
    assert done.code == 0
    assert done.json["running"] == "paused"
    assert lanes.claim("claim-1") == []
    held = cli("releases")
    assert held.code == 1
    assert "held: lane delivery is paused: bank maintenance" in held.out
    listed = cli("lanes")
    assert listed.code == 1
    row = dict(zip(*(line.split("\t") for line in listed.out.splitlines()[:2]), strict=True))
    assert (row["lane"], row["runs"], row["waiting"]) == ("delivery", "paused", "1")
    assert (row["done in"], row["reason"]) == ("never", "bank maintenance")
    assert "unrewind lanes resume delivery" in cli("where", "release-1").out
    assert cli("lanes", "resume", "delivery").code == 0
    assert cli("releases").code == 0
    assert len(lanes.claim("claim-2")) == 1


def test_lanes_show_how_long_what_waits_will_take(cli, lanes):
    lanes.release("1")
    lanes.release("2")
    views = {view["lane"]: view for view in cli("lanes", "--json").json["items"]}
    assert list(views) == ["delivery", "mail"]
    assert views["delivery"]["counts"] == {"ready": 2}
    assert views["delivery"]["waiting"] == 2
    assert views["delivery"]["drains"] is True
    assert views["mail"]["waiting"] == 0
    header = cli("lanes").out.splitlines()[0].split("\t")
    assert header[:5] == ["lane", "effect", "mode", "runs", "waiting"]


def test_only_a_best_effort_lane_is_switched_off_and_only_knowingly(cli, lanes):
    lanes.release()
    lanes.work(enqueue, "mail", "notice", [("1", b"{}")])
    words = ("--reason", "costs too much")
    cli("lanes", "off", "delivery", "--discard", *words).complains(3, "never be discarded")
    cli("lanes", "off", "mail", *words).complains(3, "--discard")
    cli("lanes", "off", "nowhere", "--discard", *words).complains(2, "nowhere")
    cli("lanes", "off", "mail", "--discard").complains(2, "--reason")
    assert cli("commands").code == 0
    assert cli("lanes", "off", "mail", "--discard", *words).code == 0
    assert cli("commands", "--json").json["items"][0]["status"] == "discarded"
    assert lanes.work(enqueue, "mail", "notice", [("2", b"{}")]) == ["item_mail_2"]
    views = {view["lane"]: view for view in cli("lanes", "--json").json["items"]}
    assert views["mail"]["counts"] == {"discarded": 2}


# Dead letters.


def test_l8_dead_letters_are_handled_by_name_only(cli, lanes):
    one = lanes.release()
    lanes.fail(one)
    for command in ("replay", "drain"):
        line = cli("dead-letters", command, "--reason", "all of it").complains(2, "--lane", "--id")
        assert "no way" in line
        cli("dead-letters", command, "--lane", "delivery").complains(2, "--reason")
        both = ("--lane", "delivery", "--id", one, "--reason", "x")
        cli("dead-letters", command, *both).complains(2, "exclude")
    assert lanes.status(one) == "dead"


def test_l8_a_replay_done_twice_acts_once(cli, lanes):
    one = lanes.release()
    lanes.fail(one)
    listed = cli("dead-letters")
    assert listed.code == 1
    assert one in listed.out
    assert "no route" in listed.out
    assert cli("releases").code == cli("lanes").code == 1
    words = ("dead-letters", "replay", "--id", one, "--id", one, "--reason", "the bank is back")
    done = cli(*words, "--json")
    assert done.code == 0, done
    assert done.json == {"done": [one], "left": {}, "more": False}
    before = cli.status()["sequence"]
    again = cli(*words, "--json")
    assert again.code == 1
    assert again.json["left"] == {one: "it is retry, not dead"}
    assert cli.status()["sequence"] == before
    assert cli("dead-letters").code == 0
    assert len(lanes.claim("claim-again")) == 1


def test_dead_letters_of_a_lane_are_taken_up_to_a_limit(cli, lanes):
    names = [lanes.release(name) for name in "123"]
    lanes.fail(names[0])
    for name in names[1:]:
        assert lanes.status(name) == "dead"
    words = ("--lane", "delivery", "--reason", "paid by hand", "--limit", "2")
    done = cli("dead-letters", "drain", *words, "--json")
    assert (done.code, done.json["done"], done.json["more"]) == (0, names[:2], True)
    told = cli("dead-letters", "drain", *words)
    assert told.out == f"done: {names[2]}\n"
    assert cli("dead-letters", "drain", *words).out == "lane delivery has no dead letters\n"
    assert [lanes.status(name) for name in names] == ["drained"] * 3
    cli("dead-letters", "--lane", "nowhere").complains(2, "nowhere")


def test_dead_commands_are_replayed_too(cli, lanes):
    cli.accept("op-1")
    lanes.work(enqueue, "mail", "notice", [("1", b"{}")])
    lanes.fail("item_mail_1", "mail")
    assert cli("commands").code == 1
    done = cli("dead-letters", "replay", "--lane", "mail", "--reason", "x", "--json")
    assert done.json["done"] == ["item_mail_1"]
    assert cli("commands").code == 0


def test_what_was_refused_is_listed_and_is_no_finding_for_ever(cli, lanes):
    one = lanes.release()
    permit = lanes.claim("claim-1")[0]
    lanes.work(report, Reported(one, Outcome.REFUSED, permit.lease, evidence="no such account"))
    done = cli("dead-letters")
    assert done.code == 0
    assert "refused" in done.out
    assert cli("lanes").code == 0


# The sweeper.


def test_l3_the_sweeper_clears_what_killed_workers_left(cli, lanes, eventually):
    one, two = lanes.release("1"), lanes.release("2")
    worker = subprocess.Popen(
        [sys.executable, "-c", KILLED],
        cwd=cli.home,
        env=cli.environment,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert worker.stdout is not None
    assert worker.stdout.readline() == "2\n"
    worker.kill()
    worker.communicate(timeout=60)
    assert {lanes.status(one), lanes.status(two)} == {"running"}
    eventually(lanes.over)
    first = cli("sweep", "--limit", "1", "--json").json
    assert (first["moved"], first["more"]) == (1, True)
    rows = [*first["rows"], *cli("sweep", "--json").json["rows"]]
    assert sum(row["rows"] for row in rows) == 2
    assert {(row["lane"], row["step"], row["status"]) for row in rows} == {
        ("delivery", "permit given to doomed", "unknown")
    }
    assert {lanes.status(one), lanes.status(two)} == {"unknown"}
    last = cli("sweep", "--json").json
    assert (last["moved"], last["failed"], last["more"]) == (0, 0, False)
    assert last["last_sweep"]["total"] == 2
    told = cli("sweep")
    assert told.code == 0
    assert re.search(r"^the sweep before succeeded: at \S+Z, \d+ s before$", told.out, re.MULTILINE)
    assert cli("verify").code == 0


def test_a_sweep_tells_what_it_moved_in_a_pipe(cli, lanes, eventually):
    lanes.release()
    assert cli("sweep").out == "moved: 0\nfailed: 0\nthe sweep before succeeded: never\n"
    lanes.claim("claim-1")
    eventually(lanes.over)
    out = cli("sweep").out
    assert out.startswith(
        "lane\tstep\tstatus\trows\ndelivery\tpermit given to worker\tunknown\t1\n"
    )
    assert "moved: 1\n" in out


def test_a_row_that_cannot_be_swept_is_a_finding_and_holds_up_no_other(cli, lanes, eventually):
    one, two = lanes.release("1"), lanes.release("2")
    lanes.claim("claim-1")
    lanes.sql("UPDATE unrewind_work SET entity = 'nothing/1' WHERE id = ?", one)
    eventually(lanes.over)
    done = cli("sweep", "--json")
    assert done.code == 1, done
    assert (done.json["moved"], done.json["failed"]) == (1, 1)
    assert done.err == "unrewind: 1 rows could not be moved and stay as they are\n"
    assert (lanes.status(one), lanes.status(two)) == ("running", "unknown")


def test_a_sweep_founds_no_tenant(cli):
    for words in (("sweep",), ("sweep", "--json")):
        cli(*words).complains(3, "no tenant main")
    (cli.home / "data").mkdir()
    (cli.home / "data/main.stop").write_text("{}")
    cli("sweep").complains(3)
    assert sorted(path.name for path in (cli.home / "data").rglob("*.db")) == []


def test_a_sweep_of_a_closed_tenant_is_refused_and_says_when_the_last_one_was(cli, lanes):
    lanes.release()
    assert cli("sweep").code == 0
    assert cli("recover", "begin").code == 0
    done = cli("sweep", "--json")
    done.complains(3, "closed")
    assert done.json["last_sweep"]["moved"] == 0


def test_a_sweep_names_the_process_that_hangs_with_the_lock(cli, lanes, hung):
    lanes.release()
    assert cli("sweep").code == 0
    pid = hung()
    done = cli("sweep", "--json", UNREWIND_LOCK_TIMEOUT="0.3")
    done.complains(3, f"process {pid}")
    assert done.json["pid"] == pid
    assert done.json["last_sweep"]["moved"] == 0


def test_l3_a_sweep_works_beside_a_server_that_hangs(cli, lanes, serving, eventually):
    one = lanes.release()
    server = serving()
    lanes.claim("claim-1")
    eventually(lanes.over)

    def swept() -> bool:
        # Stopped inside a turn it holds the lock, and is named: let it come out, and stop it again.
        server.send_signal(signal.SIGSTOP)
        done = cli("sweep", UNREWIND_LOCK_TIMEOUT="0.3")
        if done.code == 0:
            return True
        done.complains(3, f"process {server.pid}")
        server.send_signal(signal.SIGCONT)
        return False

    eventually(swept)
    assert lanes.status(one) == "unknown"


# Two processes with different lanes.


def test_commands_that_work_refuse_lanes_other_than_the_servers(cli, lanes, serving):
    one = lanes.release()
    serving()
    assert cli("sweep").code == 0
    other = LANES.replace("attempts = 2", "attempts = 3")
    (cli.home / "other.toml").write_text(other)
    accept = ("accept", "--operation", "o", "--entity", "case/1", "--action", "note")
    for words in (
        ("sweep",),
        accept,
        ("releases", "cancel", one, "--reason", "x"),
        ("dead-letters", "drain", "--lane", "delivery", "--reason", "x"),
    ):
        done = cli(*words, "--config", "other.toml", "--json")
        done.complains(2, "lane delivery")
        assert done.json["error"] == "settings-invalid"
        assert done.json["differing"] == ["lane delivery"]
    # Looking, and pausing in an emergency, ask for no agreement.
    assert cli("releases", "--config", "other.toml").code == 0
    pause = ("lanes", "pause", "delivery", "--reason", "x", "--config", "other.toml")
    assert cli(*pause).code == 0
    assert cli("sweep").code == 0
    second = cli("serve", "--port", "0", "--config", "other.toml")
    second.complains(3, "lane delivery")


def test_with_no_server_lanes_may_be_changed(cli, lanes, serving):
    lanes.release()
    server = serving()
    server.terminate()
    server.wait(60)
    (cli.home / "other.toml").write_text(LANES.replace("attempts = 2", "attempts = 3"))
    assert cli("sweep", "--config", "other.toml").code == 0


def test_a_receiver_gets_a_token_under_its_own_name(cli):
    config = '[receiver.bank]\nurl = "https://bank.example"\n'
    (cli.home / "unrewind.toml").write_text(config)
    words = ("token", "create", "--role", "receiver")
    cli(*words, "--name", "bnak").complains(2, "no receiver bnak", "declared: bank")
    assert not (cli.home / "data").exists()
    assert cli(*words, "--name", "bank").out.startswith("unr_")
    assert [item["role"] for item in cli("token", "list", "--json").json["tokens"]] == ["receiver"]


# Which boundary?


def test_where_names_each_boundary_and_what_comes_next(cli, lanes, eventually):
    one = lanes.release()
    lines = cli("where", "release-1").out.splitlines()
    assert lines[0].startswith("acceptance: passed, document/1 revision 3")
    assert lines[1].startswith("journal: passed, sequence 3")
    assert lines[2].startswith(f"lane delivery: not yet, {one}")
    assert lines[3].startswith("attempt: not yet")
    assert lines[4] == "outcome: not yet, ready"
    assert lines[5].startswith(f"next for {one}: a worker claims it")
    assert len(lines) == 6

    lanes.claim("claim-1")
    assert cli("where", "release-1").code == 0
    assert "claimed by worker" in cli("where", "release-1").out
    eventually(lanes.over)
    assert cli("sweep").code == 0
    stuck = cli("where", "release-1")
    assert stuck.code == 1
    assert "attempt: passed, 1 attempts" in stuck.out
    assert "settle" in stuck.out
    cli("releases", "settle", one, "--happened", "--evidence", "x", "--receipt", "T-1")
    over = cli("where", "release-1")
    assert over.code == 0
    assert "outcome: passed, done, receipt T-1\n" in over.out
    assert over.out.endswith(f"next for {one}: nothing is left to do\n")
    found = cli("where", "release-1", "--json").json
    assert found["operation"] == "release-1"
    assert [item["id"] for item in found["work"]] == [one]

    assert cli("where", "submit-1").out.endswith("next: nothing is left to do\n")
    cli("where", "op-none").complains(2, "op-none")


def test_where_tells_what_a_dead_letter_needs(cli, lanes):
    one = lanes.release()
    lanes.fail(one)
    done = cli("where", "release-1")
    assert done.code == 1
    assert f"unrewind dead-letters replay --id {one}" in done.out


def test_r3_orphans_are_marked_among_the_observations(cli, lanes):
    assert cli("accept", "--operation", "o", "--entity", "case/1", "--action", "note").code == 0
    assert cli("observations").code == 0
    one = lanes.release()
    first = lanes.claim("claim-1")[0]
    lanes.work(observe, Reported(one, Outcome.CONFIRMED, first.lease, receipt="T-1"), "a late one")
    known = cli("observations")
    assert known.code == 0
    assert "a late one" in known.out
    lanes.work(observe, Reported("rel_lost", Outcome.CONFIRMED, 7, receipt="T-2"), "never heard")
    done = cli("observations")
    assert done.code == 1
    assert ["rel_lost", "confirmed", "orphan"] in [
        line.split("\t")[1:4] for line in done.out.splitlines()
    ]
    items = cli("observations", "--json").json["items"]
    assert [item["status"] for item in items] == ["running", None]
    page = cli("observations", "--limit", "1", "--json").json
    assert cli("observations", "--after", page["next"], "--json").json["items"] == items[1:]
    assert f"observed: {one} confirmed" in cli("where", "release-1").out


# All of them.

LOOKING = (
    ("releases",),
    ("releases", "show", "RELEASE"),
    ("commands",),
    ("lanes",),
    ("dead-letters",),
    ("where", "release-1"),
    ("observations",),
)


def test_looking_works_beside_a_hung_process_and_changes_no_file(cli, lanes, hung):
    one = lanes.release()
    hung()
    data = cli.home / "data"
    before = {path: path.read_bytes() for path in data.rglob("*") if path.is_file()}
    for words in LOOKING:
        done = cli(*(one if word == "RELEASE" else word for word in words))
        assert done.code == 0, done
        assert done.err == ""
    after = {path: path.read_bytes() for path in data.rglob("*") if path.is_file()}
    assert {path: after.get(path) for path in before} == before


def test_looking_works_in_a_closed_tenant(cli, lanes):
    one = lanes.release()
    assert cli("recover", "begin", "--reason", "restored").code == 0
    done = cli("releases")
    assert done.code == 1
    assert "held: the tenant is closed: restored" in done.out
    for words in LOOKING:
        done = cli(*(one if word == "RELEASE" else word for word in words))
        assert done.code in {0, 1}, done
        assert done.err == ""


def test_nothing_of_a_worker_reaches_the_terminal_raw(cli, lanes):
    one = lanes.release()
    said = Reported(one, Outcome.CONFIRMED, 7, receipt="a\x1b[2Jb", worker="w\x1b]0;x")
    lanes.work(observe, said, "late\x1b[1m")
    for words in (("observations",), ("where", "release-1")):
        assert "\x1b" not in cli(*words).out


def test_none_of_these_commands_imports_the_web(cli, lanes):
    one = lanes.release()
    given = ("--reason", "x")
    settle = ("releases", "settle", one, "--happened", "--evidence", "x")
    commands = [
        *(tuple(one if word == "RELEASE" else word for word in words) for words in LOOKING),
        ("lanes", "pause", "delivery", *given),
        ("lanes", "resume", "delivery"),
        ("lanes", "off", "mail", "--discard", *given),
        ("dead-letters", "replay", "--lane", "delivery", *given),
        ("dead-letters", "drain", "--lane", "delivery", *given),
        ("sweep",),
        ("releases", "incident", one, *given),
        settle,
        ("releases", "cancel", one, *given),
    ]
    script = """
import json, sys
from api.cli import main
for words in json.loads(sys.argv[1]):
    try:
        main(words)
    except SystemExit as done:
        print(done.code, words, file=sys.stderr)
web = {"litestar", "uvicorn", "apscheduler", "httpx"} & set(sys.modules)
sys.exit(f"imported: {sorted(web)}" if web else 0)
"""
    done = subprocess.run(
        [sys.executable, "-c", script, json.dumps(commands)],
        cwd=cli.home,
        env=cli.environment,
        capture_output=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    codes = [line[0] for line in done.stderr.decode().splitlines() if line[0].isdigit()]
    assert codes == ["3" if words is settle else "0" for words in commands]


# What the documentation says.


def blocks(page: str, language: str) -> list[str]:
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    found = re.findall(rf"^```{language}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    assert found != []
    return found


def test_the_documented_query_shows_what_is_stuck_beyond_its_expected_duration(cli, lanes):
    one, two = lanes.release("1"), lanes.release("2")
    permit = lanes.claim("claim-1")[0]
    stuck, unknowns, counts, sweeps, findings = (
        statement.replace("'payout', 3.0", "'delivery', 3.0")
        for statement in blocks("lanes.md", "sql")
    )
    assert lanes.sql(stuck) == []
    long_ago = "2026-01-01T00:00:00.000000Z"
    lanes.sql("UPDATE unrewind_work SET started = ? WHERE id = ?", long_ago, permit.id)
    found = lanes.sql(stuck)
    assert [row[0] for row in found] == [permit.id]
    assert found[0][3] == "running"
    assert found[0][4] > 3600
    later = "2999-01-01T00:00:00.000000Z"
    lanes.sql("UPDATE unrewind_work SET status = 'retry', due = ? WHERE id = ?", later, permit.id)
    assert lanes.sql(stuck) == []
    lanes.sql("UPDATE unrewind_work SET status = 'unknown', due = NULL WHERE id = ?", permit.id)
    assert [row[1] for row in lanes.sql(unknowns)] == [permit.id]
    assert {one, two} == {row[0] for row in lanes.sql("SELECT id FROM unrewind_work")}
    assert ("delivery", "unknown", 1, 1.0) in lanes.sql(counts)
    assert lanes.sql(sweeps) == []
    assert lanes.sql(findings) == []
    lanes.sql("UPDATE unrewind_work SET status = 'unknown'")
    assert cli("sweep").code == 0
    assert lanes.sql(sweeps)[0][1:3] == (0, 0)


@pytest.mark.parametrize("page", ["lanes.md", "configuration.md"])
def test_documented_settings_are_taken(cli, page):
    for number, text in enumerate(blocks(page, "toml")):
        (cli.home / f"{number}.toml").write_text(text)
        if "billing.projections" not in text:
            load(cli.home / f"{number}.toml", environment={})
