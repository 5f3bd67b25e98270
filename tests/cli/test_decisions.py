"""Decisions and tokens on the files."""

import re

import pytest

SUBMIT = ("accept", "--operation", "op-1", "--entity", "document/inv-1", "--action", "submit")


def test_accept_prints_the_receipt(cli):
    done = cli(*SUBMIT, "--body", '{"amount": 120}', "--actor", "ines", "--version", "v1", "--json")
    assert done.code == 0
    assert done.err == ""
    receipt = done.json
    assert receipt["outcome"] == "accepted"
    assert (receipt["revision"], receipt["sequence"], receipt["durable_through"]) == (1, 1, 1)
    assert (receipt["state"], receipt["version"]) == ("submitted", "v1")
    assert re.fullmatch("[0-9a-f]{64}", receipt["digest"])
    plain = cli(*SUBMIT, "--body", '{"amount": 120}', "--actor", "ines", "--version", "v1")
    assert "outcome: duplicate\n" in plain.out


def test_p6_h8_a_repeat_is_answered_by_the_first_decision(cli):
    first = cli(*SUBMIT, "--json").json
    cli("accept", "--operation", "op-2", "--entity", "document/inv-1", "--action", "cancel")
    again = cli(*SUBMIT, "--json").json
    assert again == {**first, "outcome": "duplicate"}
    correct = cli(*SUBMIT, "--expected-revision", "2", "--json").json
    assert correct == again
    assert cli.status()["sequence"] == 2


def test_p6_a_reused_operation_id_is_refused_by_naming_what_differs(cli):
    cli(*SUBMIT, "--body", '{"a":1}')
    done = cli(*SUBMIT, "--body", '{"a":2}', "--actor", "tarek", "--json")
    done.complains(3, "op-1", "body", "actor")
    assert done.json["error"] == "operation-reused"
    assert sorted(done.json["differing"]) == ["actor", "body"]


def test_a_transition_that_is_not_allowed_is_refused(cli):
    done = cli(
        "accept", "--operation", "a", "--entity", "document/1", "--action", "approve", "--json"
    )
    done.complains(3, "approve is not allowed in state draft", "submit")
    assert done.json["error"] == "transition-refused"
    assert cli.status()["sequence"] == 0


def test_an_action_that_needs_a_version_says_so(cli):
    for number, action in enumerate(("submit", "approve")):
        cli.accept(f"op-{number}", "document/1", action)
    cli("accept", "--operation", "op-9", "--entity", "document/1", "--action", "release").complains(
        2, "version"
    )


@pytest.mark.parametrize("body", ['{"a":1e5, "b":[1.0, -0]}', '  {"z":1,"a":2}  ', '"text"', "[1]"])
def test_h9_a_body_is_kept_byte_for_byte(cli, body):
    (cli.home / "body.json").write_text(body)
    by_file = cli.accept("op-1", "case/1", "note", "--body-file", "body.json")
    again = cli.accept("op-1", "case/1", "note", "--body", body)
    assert again["outcome"] == "duplicate"
    assert again["digest"] == by_file["digest"]
    given = cli(
        "accept",
        "--operation",
        "op-1",
        "--entity",
        "case/1",
        "--action",
        "note",
        "--body-file",
        "-",
        "--json",
        given=body.encode(),
    )
    assert given.json["outcome"] == "duplicate"


def test_a_body_that_is_no_json_is_kept_under_its_type(cli):
    (cli.home / "scan.bin").write_bytes(bytes(range(256)))
    words = ("--body-file", "scan.bin", "--body-type", "image/png")
    assert cli.accept("op-1", "case/1", "note", *words)["revision"] == 1
    assert cli.verified()["verdict"] == "clean"


def test_a_body_over_the_limit_is_refused(cli):
    (cli.home / "large").write_bytes(b'"' + b"x" * 2_000_000 + b'"')
    cli(
        "accept", "--operation", "a", "--entity", "case/1", "--action", "b", "--body-file", "large"
    ).complains(2, "max_body")


def test_a_token_is_printed_alone(cli):
    done = cli("token", "create", "--role", "operator")
    assert (done.code, done.err) == (0, "")
    assert re.fullmatch(r"unr_[0-9a-f]+_[\w-]+\n", done.out)
    made = cli("token", "create", "--role", "reader", "--name", "audit", "--json").json
    assert made["token"].startswith(f"unr_{made['id']}_")
    listed = cli("token", "list", "--json")
    assert [(item["role"], item["name"]) for item in listed.json["tokens"]] == [
        ("operator", "operator"),
        ("reader", "audit"),
    ]
    assert made["token"].rpartition("_")[2] not in listed.out
    assert cli("token", "revoke", made["id"]).code == 0
    assert cli("token", "revoke", made["id"]).code == 0
    assert [item["revoked"] for item in cli("token", "list", "--json").json["tokens"]] == [
        False,
        True,
    ]
    cli("token", "revoke", "nobody").complains(2, "nobody")


def test_two_commands_at_once_make_one_order(cli):
    cli.accept("op-0")
    children = [
        cli.start("accept", "--operation", f"op-{n}", "--entity", "case/1", "--action", "note")
        for n in range(1, 7)
    ]
    for child in children:
        _, said = child.communicate(timeout=60)
        assert child.returncode == 0, said
    assert cli.status()["sequence"] == 7
    assert cli.verified()["verdict"] == "clean"


def test_tenants_are_apart(cli):
    cli.accept("op-1", "case/1", "note", "--tenant", "north")
    cli.accept("op-1", "case/1", "note", "--tenant", "south")
    assert cli("status", "--tenant", "north", "--json").json["sequence"] == 1
    cli("status").complains(3, "no tenant main")


def test_a_hung_process_is_named_by_its_pid(cli, hung):
    cli.accept("op-1")
    pid = hung()
    done = cli(
        "accept",
        "--operation",
        "op-2",
        "--entity",
        "case/1",
        "--action",
        "note",
        "--json",
        UNREWIND_LOCK_TIMEOUT="0.3",
    )
    done.complains(3, f"process {pid}")
    assert done.json["error"] == "lock-held"
    assert done.json["pid"] == pid
