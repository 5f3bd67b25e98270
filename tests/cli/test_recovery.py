"""Recovery from the command line: begin, restore, plan, apply, reopen."""

import json
import shutil
import signal
import socket
import sqlite3
from contextlib import closing
from http.client import HTTPConnection


def history_of(cli) -> str:
    return cli.status()["history"]


def fill(cli, first: int, last: int) -> None:
    rows = "".join(f"op-{n},{n % 3},step,{n}\n" for n in range(first, last + 1))
    (cli.home / "rows.csv").write_text("operation,case,action,n\n" + rows)
    done = cli(
        "import", "rows.csv", "--entity-type", "case", "--entity", "case", "--action", "action",
        "--operation", "operation", "--json",
    )  # fmt: skip
    assert done.json["accepted"] == last - first + 1


def test_p2_p11_a_restored_store_is_brought_back_to_the_same_digest(shell):
    cli = shell
    fill(cli, 1, 5)
    taken = cli("snapshot", "backup", "--json")
    assert taken.code == 0
    assert taken.json["place"]["sequence"] == 5
    fill(cli, 6, 12)
    before = cli.verified()
    history = history_of(cli)

    put_back = cli(
        "restore", "backup", "--confirm-tenant", "main", "--confirm-history", history, "--json"
    )
    assert put_back.code == 0, put_back
    assert cli("status").code == 1

    begun = cli("recover", "begin", "--reason", "restored to noon", "--json")
    assert begun.code == 0, begun
    assert begun.json["generation"] == 2
    assert (cli.home / "data" / begun.json["evidence"]).is_dir()
    assert cli.status()["stopped"]["reason"] == "restored to noon"

    planned = cli("recover", "plan", "--json")
    assert planned.code == 0, planned
    assert (planned.json["missing"], planned.json["exceptions"]) == (7, 0)
    applied = cli("recover", "apply", "--plan", planned.json["plan"], "--json")
    assert applied.code == 0, applied
    assert applied.json["replayed"] == 7
    assert applied.json["parent"] == history
    again = cli("recover", "apply", "--json")
    assert again.code == 0, again
    assert again.json["history"] == applied.json["history"]

    opened = cli("recover", "reopen", "--json")
    assert opened.code == 0, opened
    assert opened.json["stage"] == "open"
    after = cli.verified()
    assert after["findings"] == []
    assert after["state_digest"] == before["state_digest"]
    assert cli("status").code == 0
    repeated = cli.accept("op-9", "case/0", "step", "--body", '{"n":"9"}')
    assert repeated["outcome"] == "duplicate"
    assert cli.accept("op-13", "case/0", "step")["history"] == applied.json["history"]


def test_every_step_reads_well_in_a_pipe(cli):
    fill(cli, 1, 3)
    assert "sequence: 3\n" in cli("snapshot", "backup").out
    fill(cli, 4, 6)
    words = ("--confirm-tenant", "main", "--confirm-history", history_of(cli))
    assert "next: unrewind recover begin\n" in cli("restore", "backup", *words).out
    assert "generation: 2\n" in cli("recover", "begin").out
    plan = cli("recover", "plan").out
    assert "3 decisions to replay" in plan
    identity = plan.splitlines()[0].removeprefix("plan: ")
    assert f"unrewind recover apply --plan {identity}\n" in plan
    assert "replayed: 3\n" in cli("recover", "apply", "--plan", identity).out
    assert "stage: open\n" in cli("recover", "reopen").out


def test_a_plan_with_exceptions_ends_with_1(cli):
    fill(cli, 1, 6)
    with closing(sqlite3.connect(cli.home / "data/store/main.db")) as store:
        store.execute("DELETE FROM unrewind_entities WHERE entity = 'case/1'")
        store.commit()
    assert cli("recover", "begin").code == 0
    planned = cli("recover", "plan", "--json")
    assert planned.code == 1, planned
    assert planned.json["rebuild"] == ["case/1"]
    assert planned.json["exceptions"] == 1
    assert cli("recover", "apply").code == 0
    assert cli("recover", "reopen").code == 0
    assert cli.verified()["verdict"] == "clean"


def test_another_plan_than_the_one_named_is_refused(cli):
    fill(cli, 1, 3)
    cli("recover", "begin")
    cli("recover", "apply", "--plan", "0123456789abcdef").complains(3, "0123456789abcdef")


def test_steps_out_of_order_are_refused(cli):
    fill(cli, 1, 3)
    cli("recover", "apply").complains(3, "recover begin")
    cli("recover", "begin")
    cli("recover", "reopen").complains(3, "recover apply")


def test_r20_restore_wants_tenant_and_history_named_rightly(cli):
    fill(cli, 1, 3)
    cli("snapshot", "backup")
    wrong = "0" * 32
    words = ("restore", "backup", "--confirm-tenant")
    cli(*words, "other", "--confirm-history", history_of(cli)).complains(3, "tenant main")
    cli(*words, "main", "--confirm-history", wrong).complains(3, wrong)
    assert cli("status").code == 0


def test_a_snapshot_never_overwrites_and_a_damaged_one_is_refused(cli):
    fill(cli, 1, 3)
    assert cli("snapshot", "backup").code == 0
    cli("snapshot", "backup").complains(3, "backup")
    with (cli.home / "backup/store.db").open("r+b") as copy:
        copy.seek(5000)
        copy.write(b"\xff")
    words = ("--confirm-tenant", "main", "--confirm-history", history_of(cli))
    cli("restore", "backup", *words).complains(3, "hash")


def test_begin_beside_a_hung_process_stops_the_tenant_and_names_the_pid(cli, hung):
    fill(cli, 1, 3)
    pid = hung()
    done = cli("recover", "begin", "--json", UNREWIND_LOCK_TIMEOUT="0.3")
    done.complains(3, "not fenced", f"process {pid}")
    assert done.json["pid"] == pid
    assert (cli.home / "data/main.stop").exists()
    assert cli.status()["stage"] == "closed"


def test_p9_with_the_journal_gone_begin_stops_but_does_not_fence(cli):
    fill(cli, 1, 3)
    shutil.rmtree(cli.home / "data/journal")
    cli("recover", "begin").complains(3)
    assert (cli.home / "data/main.stop").exists()
    cli("recover", "reopen").complains(3)


def test_tokens_outlive_a_rewind(cli):
    fill(cli, 1, 3)
    cli("snapshot", "backup")
    made = cli("token", "create", "--role", "reader", "--json").json["id"]
    cli("token", "revoke", made)
    words = ("--confirm-tenant", "main", "--confirm-history", history_of(cli))
    assert cli("restore", "backup", *words).code == 0
    assert cli("token", "list", "--json").json["tokens"][0]["revoked"] is True
    assert cli("token", "create", "--role", "operator").code == 0
    for step in ("begin", "plan", "apply", "reopen"):
        assert cli("recover", step).code == 0
    assert [item["revoked"] for item in cli("token", "list", "--json").json["tokens"]] == [
        True,
        False,
    ]


def test_p7_a_server_that_hangs_is_fenced_and_follows_when_it_wakes(cli, eventually):
    token = cli("token", "create", "--role", "operator").out.strip()
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    server = cli.start("serve", "--port", port)

    def decide(operation: str) -> tuple[int, dict]:
        connection = HTTPConnection("127.0.0.1", port, timeout=30)
        try:
            headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
            body = {"operation": operation, "entity": "case/1", "action": "note"}
            connection.request("POST", "/v1/main/decisions", json.dumps(body), headers)
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())
        finally:
            connection.close()

    try:
        assert server.stdout is not None
        assert str(port).encode() in server.stdout.readline()
        assert decide("op-1")[0] == 201
        server.send_signal(signal.SIGSTOP)
        for words in (("status",), ("gaps",), ("history", "case/1"), ("verify",)):
            assert cli(*words).code == 0
        assert cli("recover", "begin").code == 0
        server.send_signal(signal.SIGCONT)
        assert decide("op-2")[0] == 503
        for step in ("plan", "apply", "reopen"):
            assert cli("recover", step).code == 0
        status, receipt = decide("op-2")
        assert (status, receipt["revision"], receipt["generation"]) == (201, 2, 2)
        assert cli("status").code == 0
    finally:
        server.send_signal(signal.SIGCONT)
        server.terminate()
        server.communicate(timeout=60)
    assert server.returncode == 0
