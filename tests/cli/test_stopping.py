"""`unrewind stop`, `resume` and `stops`, from the files alone."""

from __future__ import annotations

from pathlib import Path

from tests.cli.conftest import Command

LANE = """
[lane.mail]
effect = "internal"
"""


def test_a_type_is_stopped_and_let_go_on_from_the_command_line(cli: Command) -> None:
    cli.accept("op-1")
    done = cli("stop", "case/note", "--reason", "a faulty form", "--json")
    assert done.code == 0, done
    assert (done.json["type"], done.json["action"]) == ("case", "note")
    assert done.json["principal"].startswith("os-user:")
    held = cli("accept", "--operation", "op-2", "--entity", "case/1", "--action", "note", "--json")
    held.complains(3, "case/note is stopped: a faulty form", "`unrewind stops`")
    assert held.json["error"] == "held"
    # A known operation is answered all the same, and so is every other action.
    assert cli.accept("op-1")["outcome"] == "duplicate"
    assert cli.accept("op-3", "case/1", "close")["outcome"] == "accepted"
    listed = cli("stops")
    assert listed.code == 1, listed
    assert listed.out.splitlines()[1].split("\t")[:2] == ["case/note", "a faulty form"]
    done = cli("resume", "case/note", "--reason", "mended")
    assert (done.code, done.out) == (0, "case/note goes on\n")
    assert cli("stops", "--json").json == {"items": [], "lanes": {}}
    assert cli.accept("op-2")["outcome"] == "accepted"


def test_a_lane_is_stopped_as_the_lanes_command_does_it(cli: Command) -> None:
    toml: Path = cli.home / "unrewind.toml"
    toml.write_text(toml.read_text() + LANE)
    cli.accept("op-1")
    assert cli("stop", "--lane", "mail", "--reason", "the server moves").code == 0
    (shown,) = [each for each in cli("lanes", "--json").json["items"] if each["lane"] == "mail"]
    assert (shown["running"], shown["reason"]) == ("paused", "the server moves")
    listed = cli("stops", "--json")
    assert (listed.code, [*listed.json["lanes"]]) == (1, ["mail"])
    assert cli("resume", "--lane", "mail", "--reason", "moved").code == 0
    assert cli("stops").code == 0


def test_stopping_nothing_or_two_things_at_once_says_what_to_name(cli: Command) -> None:
    cli.accept("op-1")
    cli("stop", "--reason", "why").complains(2, "TYPE/ACTION or --lane NAME")
    cli("stop", "case", "--lane", "mail", "--reason", "why").complains(2, "--lane NAME")
    cli("stop", "case/", "--reason", "why").complains(2, "case/ is no TYPE")
    cli("stop", "csae", "--reason", "why").complains(2, "declared: case")
    cli("stop", "case").complains(2, "--reason")
