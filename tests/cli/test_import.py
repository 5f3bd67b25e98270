"""Import: rows become decisions once, whatever interrupts them."""

import csv
import gzip
import io
import json
import resource
import signal
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
RECEIPT = ROOT.parent / "shared/data/receipt.csv"

DOCUMENTS = (
    "--entity-type", "document", "--entity", "document", "--action", "action", "--at", "at",
    "--actor", "actor", "--operation", "operation", "--version", "version",
)  # fmt: skip
CASES = ("--entity-type", "case", "--entity", "case", "--action", "action", "--at", "at")
WITH_IDS = (*CASES, "--operation", "operation")
BATCH = 8000


def counts(result) -> tuple[int, int, int]:
    found = result.json
    assert found["rows"] == found["accepted"] + found["duplicate"] + found["refused"]
    return found["accepted"], found["duplicate"], found["refused"]


def table(rows: int, cases: int = 300) -> bytes:
    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerow(["operation", "case", "action", "at", "amount", "note"])
    for n in range(rows):
        at = f"2026-01-{1 + n % 28:02d} {n % 24:02d}:{n % 60:02d}:00.{n % 1000000:06d}+02:00"
        writer.writerow(
            [f"op-{n:06d}", n * 7919 % cases, f"step-{n % 5}", at, n, 'a, "note"\nof 2']
        )
    return out.getvalue().encode()


def put(cli, name: str, content: str | bytes) -> str:
    (cli.home / name).write_bytes(content.encode() if isinstance(content, str) else content)
    return name


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_the_shipped_example_is_imported_without_a_configuration(cli, kind):
    (cli.home / "unrewind.toml").unlink()
    file = EXAMPLES / f"decisions.{kind}"
    words = ("import", file, *DOCUMENTS, "--json")
    # What became of a release is no decision of whoever wrote the log: such rows are refused.
    theirs = file.read_text(encoding="utf-8").count("release.")
    code = 1 if theirs else 0
    first = cli(*words)
    assert first.code == code
    assert first.err == ""
    assert counts(first) == (63 - theirs, 0, theirs)
    assert all("release.confirmed" in error["detail"] for error in first.json["errors"])
    again = cli(*words)
    assert counts(again) == (0, 63 - theirs, theirs)
    assert again.code == code
    assert cli.status()["entities"] == 12
    assert cli.verified()["verdict"] == "clean"


def test_the_real_log_is_imported_once(cli):
    if not RECEIPT.exists():
        pytest.skip("the shared decision log is not on this machine")
    words = (
        "import", RECEIPT, "--entity-type", "case", "--entity", "case:concept:name", "--action",
        "concept:name", "--at", "time:timestamp", "--actor", "org:resource", "--operation",
        "concept:instance", "--json",
    )  # fmt: skip
    assert counts(cli(*words)) == (8577, 0, 0)
    assert cli.status()["entities"] == 1434
    digest = cli.verified()["state_digest"]
    assert counts(cli(*words)) == (0, 8577, 0)
    assert cli.verified()["state_digest"] == digest


def test_p11_an_import_that_was_killed_is_run_again_to_the_same_state(cli, tmp_path, eventually):
    content = table(14_000)
    whole = put(cli, "whole.csv", content)
    assert counts(cli("import", whole, *WITH_IDS, "--data", "other", "--json")) == (14_000, 0, 0)
    wanted = cli("verify", "--data", "other", "--json").json["state_digest"]

    child = cli.start("import", "-", "--format", "csv", *WITH_IDS)
    child.stdin.write(content[: content.index(b"op-011000")])
    child.stdin.flush()
    eventually(lambda: cli.journalled() == BATCH)
    child.kill()
    child.communicate(timeout=60)
    assert child.returncode == -signal.SIGKILL

    assert counts(cli("import", whole, *WITH_IDS, "--json")) == (6000, 8000, 0)
    report = cli.verified()
    assert (report["verdict"], report["state_digest"]) == ("clean", wanted)


def test_an_interrupted_import_says_how_far_it_came(cli, eventually):
    content = table(10_000)
    child = cli.start("import", "-", "--format", "csv", *WITH_IDS, "--json")
    child.stdin.write(content[: content.index(b"op-009000")])
    child.stdin.flush()
    eventually(lambda: cli.journalled() == BATCH)
    eventually(lambda: _blocked(child))
    child.send_signal(signal.SIGINT)
    out, err = child.communicate(timeout=60)
    assert child.returncode == 130
    assert err.decode().count("\n") == 1
    assert err.startswith(b"unrewind: interrupted after 8000 rows")
    assert json.loads(out)["accepted"] == BATCH
    again = cli("import", put(cli, "all.csv", content), *WITH_IDS, "--json")
    assert counts(again) == (2000, BATCH, 0)
    assert cli.status()["verdict"] == "clean"


def _blocked(child: "subprocess.Popen[bytes]") -> bool:
    """Whether the process sleeps (waiting for its stdin), as far as the system tells."""
    stat = Path(f"/proc/{child.pid}/stat")
    return not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] == "S"


@pytest.mark.parametrize("form", ["csv", "jsonl"])
def test_without_an_operation_column_ids_follow_from_the_content(cli, form):
    rows = [
        {"case": "1", "action": "a", "at": "2026-01-01T00:00:00Z", "n": "1"},
        {"case": "1", "action": "a", "at": "2026-01-01T00:00:00Z", "n": "1"},
        {"case": "2", "action": "b", "at": "2026-01-01T01:00:00+01:00", "n": "2"},
    ]

    def written(name: str, chosen: list[dict]) -> str:
        if form == "jsonl":
            return put(cli, name, "".join(json.dumps(row) + "\n" for row in chosen))
        lines = [",".join(rows[0]), *(",".join(row.values()) for row in chosen)]
        return put(cli, name, "\n".join(lines))

    first = written(f"a.{form}", rows)
    assert counts(cli("import", first, *CASES, "--json")) == (3, 0, 0)
    assert counts(cli("import", first, *CASES, "--json")) == (0, 3, 0)
    other = written(f"b.{form}", [rows[2], *rows, {**rows[2], "case": "9"}])
    assert counts(cli("import", other, *CASES, "--json")) == (2, 3, 0)
    steps = cli("history", "case/1", "--json").json["revisions"]
    assert steps[0]["operation"].startswith("row-2026-01-01T00:00:00.000000Z-")
    assert steps[1]["operation"] == steps[0]["operation"] + "-2"


def test_csv_becomes_a_body_of_strings_without_empty_cells(cli):
    name = put(cli, "a.csv", '\ufeffz,case,action,a,b\n"1,5",7,go,,ü "q"\n')
    words = ("--entity-type", "case", "--entity", "case", "--action", "action")
    assert counts(cli("import", name, *words, "--json")) == (1, 0, 0)
    body = '{"z":"1,5","b":"ü \\"q\\""}'
    assert _body_of(cli, "case/7") == body


def test_h9_json_lines_keep_values_as_they_are(cli):
    line = '{"n": 1.0, "case": 7, "big": 1e5, "deep": {"b":[1, 2],"a":null}, "action": "go"}\n'
    words = ("--entity-type", "case", "--entity", "case", "--action", "action")
    assert counts(cli("import", put(cli, "a.jsonl", line), *words, "--json")) == (1, 0, 0)
    assert _body_of(cli, "case/7") == '{"n":1.0,"big":1e5,"deep":{"b":[1, 2],"a":null}}'


def _body_of(cli, entity: str) -> str:
    import sqlite3

    file = sqlite3.connect(f"file:{cli.home / 'data/journal/main.db'}?mode=ro", uri=True)
    try:
        query = "SELECT body FROM entries WHERE entity = ?"
        return file.execute(query, (entity,)).fetchone()[0].decode()
    finally:
        file.close()


BAD_ROWS = {
    "missing field": ("o3,3,a", "fields"),
    "surplus field": ("o3,3,a,2026-01-01T00:00:00Z,x,y", "fields"),
    "bad time": ("o3,3,a,yesterday,x", "RFC 3339"),
    "no offset": ("o3,3,a,2026-01-01 00:00:00,x", "--timezone"),
    "no such day": ("o3,3,a,2026-02-30 00:00:00Z,x", "day"),
    "too fine": ("o3,3,a,2026-01-01 00:00:00.1234567Z,x", "microseconds"),
    "empty entity": ("o3,,a,2026-01-01T00:00:00Z,x", "case is empty"),
    "empty action": ("o3,3,,2026-01-01T00:00:00Z,x", "action is empty"),
    "empty operation": (",3,a,2026-01-01T00:00:00Z,x", "operation is empty"),
    "long operation": (f"{'o' * 300},3,a,2026-01-01T00:00:00Z,x", "256"),
    "control character": ("o3,3\x07,a,2026-01-01T00:00:00Z,x", "control character"),
    "reused operation": ("o1,3,a,2026-01-01T00:00:00Z,x", "already belongs"),
    "stray quote": ('o3,"3"x,a,2026-01-01T00:00:00Z,x', "CSV"),
}


def test_bad_rows_are_refused_by_their_lines_and_the_others_go_on(cli):
    good = "{},{},a,2026-01-01T00:00:00Z,x\n"
    text = "operation,case,action,at,n\n" + good.format("o1", 1) + "\n"
    for row, _ in BAD_ROWS.values():
        text += f"{row}\n"
    done = cli("import", put(cli, "a.csv", text + good.format("o9", 9)), *WITH_IDS, "--json")
    assert done.code == 1
    assert done.err == ""
    assert counts(done) == (2, 0, len(BAD_ROWS))
    for line, (name, fault) in enumerate(zip(BAD_ROWS, done.json["errors"], strict=True), 4):
        assert fault["line"] == line, name
        assert BAD_ROWS[name][1] in fault["detail"], name
    plain = cli("import", "a.csv", *WITH_IDS)
    assert plain.code == 1
    assert plain.out.startswith(
        f"15 rows: 0 accepted, 2 duplicate, {len(BAD_ROWS)} refused\nline 4: "
    )


def test_rows_that_are_no_utf8_are_refused(cli):
    text = (
        b"operation,case,action,at\no1,1,a,2026-01-01T00:00:00Z\no2,2,\xff,2026-01-01T00:00:00Z\n"
    )
    done = cli("import", put(cli, "a.csv", text), *WITH_IDS, "--json")
    assert counts(done) == (1, 0, 1)
    assert done.json["errors"][0]["line"] == 3


BAD_LINES = [
    ("{", "not JSON"),
    ("[1]", "object"),
    ('{"case":1}', "no column action"),
    ('{"case":1.5,"action":"a","operation":"o","at":"2026-01-01T00:00:00Z"}', "integer"),
    ('{"case":true,"action":"a","operation":"o","at":"2026-01-01T00:00:00Z"}', "integer"),
    ('{"case":1,"action":"a","operation":"o","at":null}', "at is empty"),
    ('{"case":1,"case":2,"action":"a","operation":"o","at":"x"}', "repeats the key"),
    ('{"case":1,"action":"a","operation":"o","at":"2026-01-01T00:00:00Z","n":NaN}', "JSON"),
    (
        '{"case":1,"action":"a","operation":"o","at":"2026-01-01T00:00:00Z","n":9007199254740993}',
        "2^53",
    ),
    ('{"case":"\\ud800","action":"a","operation":"o","at":"2026-01-01T00:00:00Z"}', ""),
]


def test_bad_json_lines_are_refused_and_the_others_go_on(cli):
    good = '{"case":1,"action":"a","operation":"ok","at":"2026-01-01T00:00:00Z"}'
    text = "".join(f"{line}\n" for line, _ in BAD_LINES) + f"\n{good}"
    done = cli("import", put(cli, "a.jsonl", text), *WITH_IDS, "--json")
    assert done.code == 1
    assert counts(done) == (1, 0, len(BAD_LINES))
    for number, ((line, said), fault) in enumerate(
        zip(BAD_LINES, done.json["errors"], strict=True), 1
    ):
        assert fault["line"] == number, line
        assert said in fault["detail"], line


def test_only_the_first_twenty_faults_are_listed(cli):
    text = "operation,case,action,at\n" + "".join(f"o{n},1\n" for n in range(30))
    done = cli("import", put(cli, "a.csv", text), *WITH_IDS, "--json")
    assert counts(done) == (0, 0, 30)
    assert [fault["line"] for fault in done.json["errors"]] == list(range(2, 22))
    assert cli("import", "a.csv", *WITH_IDS).out.endswith("and 10 more\n")


def test_strict_stops_at_the_first_refused_row(cli):
    words = (*WITH_IDS[:1], "document", *WITH_IDS[2:])
    at = "2026-01-01T00:00:00Z"
    text = f"operation,case,action,at\no1,1,submit,{at}\no2,2,approve,{at}\no3,1,approve,{at}\n"
    done = cli("import", put(cli, "a.csv", text), *words, "--strict", "--json")
    assert done.code == 1
    assert counts(done) == (1, 0, 1)
    assert done.json["errors"][0]["line"] == 3
    assert cli.status()["sequence"] == 1
    assert counts(cli("import", "a.csv", *words, "--json")) == (1, 1, 1)


def test_a_time_zone_is_taken_when_named(cli):
    text = "operation,case,action,at\no1,1,a,2026-07-01 12:00:00\no2,1,a,2026-07-01T12:00:00.5Z\n"
    name = put(cli, "a.csv", text)
    assert counts(cli("import", name, *WITH_IDS, "--timezone", "+05:30", "--json")) == (2, 0, 0)
    steps = cli("history", "case/1", "--json").json["revisions"]
    assert [step["at"] for step in steps] == [
        "2026-07-01T06:30:00.000000Z",
        "2026-07-01T12:00:00.500000Z",
    ]


def test_offsets_that_vary_name_the_same_moment(cli):
    text = "operation,case,action,at\n"
    for number, at in enumerate(
        (
            "2011-10-11 13:45:40.276000+02:00",
            "2011-10-11T11:45:40.276Z",
            "2011-10-11t06:45:40.276-05:00",
        )
    ):
        text += f"o{number},1,a,{at}\n"
    assert counts(cli("import", put(cli, "a.csv", text), *WITH_IDS, "--json")) == (3, 0, 0)
    steps = cli("history", "case/1", "--json").json["revisions"]
    assert {step["at"] for step in steps} == {"2011-10-11T11:45:40.276000Z"}


def test_gzip_tabs_and_other_delimiters(cli):
    text = "operation;case;action;at\no1;1;a;2026-01-01T00:00:00Z\n"
    packed = put(cli, "a.csv.gz", gzip.compress(text.encode()))
    assert counts(cli("import", packed, *WITH_IDS, "--delimiter", ";", "--json")) == (1, 0, 0)
    tabs = put(cli, "a.tsv", text.replace(";", "\t"))
    assert counts(cli("import", tabs, *WITH_IDS, "--json")) == (0, 1, 0)
    given = text.replace(";", ",").encode()
    piped = cli("import", "-", "--format", "csv", *WITH_IDS, "--json", given=given)
    assert counts(piped) == (0, 1, 0)


@pytest.mark.parametrize("content", [b"not gzip at all", None])
def test_a_broken_archive_is_one_line(cli, content):
    broken = gzip.compress(table(5000))[:-500] if content is None else content
    put(cli, "a.csv.gz", broken)
    done = cli("import", "a.csv.gz", *WITH_IDS, "--json")
    done.complains(2, "a.csv.gz", "line")
    assert done.json["error"] == "unreadable"
    if content is None:
        assert done.json["accepted"] == cli.journalled() > 4000


@pytest.mark.parametrize("content", ["", "\n", "case,case,action,at,operation\n", "a\x00b\n", '"x'])
def test_a_header_that_makes_no_sense_is_one_line(cli, content):
    cli("import", put(cli, "a.csv", content), *WITH_IDS).complains(2, "a.csv")


def test_a_file_without_rows_is_fine(cli):
    done = cli("import", put(cli, "a.csv", "operation,case,action,at\n"), *WITH_IDS, "--json")
    assert done.code == 0
    assert counts(done) == (0, 0, 0)


def test_a_line_without_end_is_refused_in_bounded_memory(cli):
    config = (cli.home / "unrewind.toml").read_text()
    (cli.home / "unrewind.toml").write_text("max_body = 1000\n" + config)
    at = "2026-01-01T00:00:00Z"
    text = f"operation,case,action,at,n\no1,1,a,{at},{'x' * 900_000}\no2,1,a,{at},{'y' * 1500}\n"
    done = cli("import", put(cli, "a.csv", f"{text}o3,1,a,{at},z\n"), *WITH_IDS, "--json")
    assert counts(done) == (1, 0, 2)
    assert [fault["line"] for fault in done.json["errors"]] == [2, 3]


def test_import_into_a_closed_tenant_is_refused_with_the_counts(cli):
    cli.accept("op-1")
    assert cli("recover", "begin").code == 0
    done = cli("import", put(cli, "a.csv", table(10)), *WITH_IDS, "--json")
    done.complains(3, "closed")
    assert done.json["error"] == "recovering"
    assert done.json["accepted"] == 0


def test_r15_a_full_disk_is_one_line_and_the_rerun_completes(cli):
    cli.accept("op-first")
    name = put(cli, "a.csv", table(9000))

    def no_room() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1_500_000, 1_500_000))

    done = subprocess.run(
        cli.words("import", name, *WITH_IDS, "--json"),
        cwd=cli.home,
        env=cli.environment,
        capture_output=True,
        stdin=subprocess.DEVNULL,
        timeout=60,
        check=False,
        preexec_fn=no_room,
    )
    assert done.returncode == 3, done
    assert done.stderr.count(b"\n") == 1
    assert done.stderr.startswith(b"unrewind: ")
    before = json.loads(done.stdout)
    assert before["error"] == "writer-stopped"
    assert before["accepted"] < 9000
    found = cli("import", name, *WITH_IDS, "--json").json
    assert found["accepted"] + found["duplicate"] == 9000
    assert found["duplicate"] >= before["accepted"]
    assert cli.verified()["verdict"] == "clean"


def test_a_pipe_gets_no_progress(cli):
    done = cli.process("import", put(cli, "a.csv", table(5000)), *WITH_IDS)
    assert done.code == 0
    assert done.err == ""
    assert done.out == "5000 rows: 5000 accepted, 0 duplicate, 0 refused\n"
