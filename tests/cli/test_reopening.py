"""`recover reopen`, `recover report` and `operations` on the command line."""

import json

LANES = """
[lifecycle.case]
kind = "free"

[lane.post]
owner = "ines"
resolve_within = {within}

[lifecycle.letter]
initial = "new"

[lifecycle.letter.actions.send]
from = ["new"]
to = "sent"
releases = ["post"]
"""


def prepared(cli, within: str = "86400.0") -> None:
    (cli.home / "unrewind.toml").write_text(LANES.format(within=within))
    cli.accept("op-1", "letter/1", "send", "--version", "1")
    assert cli("recover", "begin", "--reason", "restored to noon").code == 0
    assert cli("recover", "apply").code == 0


def test_reopening_stops_where_something_is_missing_and_goes_on_by_name(cli):
    prepared(cli)
    stopped = cli("recover", "reopen")
    assert stopped.code == 1, stopped
    assert "stage: internal\n" in stopped.out
    assert "missing: reconciled: 1 release is open" in stopped.out
    assert "next: " in stopped.out
    cli("recover", "reopen", "--to", "open").complains(3, "reconciled")
    cli("recover", "reopen", "--despite", "reconciled").complains(2, "--reason")
    cli("recover", "reopen", "--despite", "heads", "--reason", "x").complains(2, "reconciled")
    cli("recover", "reopen", "--to", "open", "--lanes", "post").complains(2, "--to external")
    cli("recover", "reopen", "--to", "external").complains(2, "lanes")
    cli("recover", "reopen", "--rate", "2").complains(2, "lanes")
    waived = ("--despite", "reconciled", "--reason", "the post was asked")
    external = cli("recover", "reopen", "--lanes", "post", "--rate", "2", *waived, "--json")
    assert (external.code, external.json["stage"]) == (0, "external"), external
    # Nothing of it goes out, for no worker runs: that is waited for, and told.
    waits = cli("recover", "reopen", "--wait", "0.3", "--json")
    assert (waits.code, waits.json["stage"], waits.json["soon"]) == (1, "external", True)
    cli("recover", "reopen", "--to", "open", "--wait", "0.3").complains(3, "trial")
    opened = cli("recover", "reopen", "--despite", "trial", "--reason", "no worker runs here")
    assert opened.code == 0, opened
    assert "waived: trial: " in opened.out
    report = cli("recover", "report")
    assert report.code == 0, report
    assert "stage: open\n" in report.out
    assert "the post was asked" in report.out
    assert "unresolved: op-1 of letter/1: ines until " in report.out


def test_a_report_without_a_recovery_says_so(cli):
    cli.accept("op-1")
    cli("recover", "report").complains(2, "no recovery")


def test_p12_operations_tell_their_owner_and_a_passed_deadline(cli):
    (cli.home / "unrewind.toml").write_text(LANES.format(within="0.001"))
    cli.accept("op-1", "letter/1", "send", "--version", "1")
    cli.accept("op-2", "case/1", "note")
    listed = cli("operations")
    assert listed.code == 1, listed
    assert "op-2\tcase/1\tnote\t" in listed.out
    assert "\tcompleted\t" in listed.out
    late = cli("operations", "--unresolved", "--json")
    assert late.code == 1, late
    (item,) = late.json["items"]
    assert (item["operation"], item["fate"]["owner"], item["fate"]["overdue"]) == (
        "op-1",
        "ines",
        True,
    )
    assert (late.json["next"], late.json["orphans"]) == (None, [])
    of_case = cli("operations", "--entity", "case/1", "--unresolved")
    assert (of_case.code, of_case.out) == (0, "nothing is unresolved\n")
    page = cli("operations", "--limit", "1", "--json")
    assert page.code == 1, page
    assert len(page.json["items"]) == 1
    rest = cli("operations", "--limit", "1", "--after", page.json["next"], "--json")
    assert [item["operation"] for item in rest.json["items"]] == ["op-2"]
    cli("operations", "--entity", "nothing").complains(2, "type/id")
    cli("operations", "--after", "nonsense").complains(2, "cursor")
    assert json.loads(cli("operations", "--entity", "case/2", "--json").out)["items"] == []
