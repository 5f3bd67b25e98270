"""`recover abandon` on the command line: refused until everything is named, then done for good."""

from tests.reconstruct.scenes import raw


def damaged(cli) -> None:
    """Four decisions of a case, the second of them gone from the journal, and the store lost."""
    for number in range(1, 5):
        cli.accept(f"op-{number}")
    cli.accept("op-after", "case/2")
    (journal,) = (cli.home / "data" / "journal").glob("*.db")
    raw(journal, "DELETE FROM entries WHERE operation = 'op-2'")
    (store,) = (cli.home / "data" / "store").glob("*.db")
    store.unlink()
    assert cli("recover", "begin", "--reason", "a disk was lost").code == 0
    assert cli("recover", "apply").code == 0


def test_what_is_dropped_is_named_and_the_rest_goes_on(cli):
    damaged(cli)
    status = cli.status()
    words = ("recover", "abandon", "case/1", "--reason", "op-2 is lost", "--evidence", "ticket 481")
    confirmed = ("--confirm-tenant", "main", "--confirm-history", status["history"])
    cli(*words).complains(2, "--confirm-tenant")
    cli(*words, *confirmed).complains(3, "--drop op-3 --drop op-4")
    cli(*words, "--confirm-tenant", "main", "--confirm-history", "ab" * 16).complains(3, "history")
    cli(*words, "--drop", "op-3", *confirmed).complains(3, "--drop op-4")
    done = cli(*words, "--drop", "op-3", "--drop", "op-4", *confirmed)
    assert done.code == 0, done
    assert "goes on from revision: 1\n" in done.out
    assert "dropped: op-3 (note, revision 3)\n" in done.out
    again = cli(*words, *confirmed, "--json")
    assert (again.code, again.json["again"], again.json["missing"]) == (0, True, 1)
    assert cli("recover", "reopen").code == 0
    verified = cli("verify")
    assert verified.code == 0, verified
    assert "abandoned: case/1 goes on from revision 1 since " in verified.out
    assert cli("accept", "--operation", "op-5", "--entity", "case/1", "--action", "note").code == 0
    history = cli("history", "case/1")
    assert history.code == 0, history
    assert history.out.count("abandoned") == 3
    assert "abandoned above revision 1, " in history.out
