#!/usr/bin/env bash
# A tour of releases: one document goes out, one is cancelled in time, a letter goes through a worker
# of our own, and at the end both sides agree by release ID. Run it from anywhere; it needs the
# environment that `make setup` makes, and leaves nothing behind.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export PATH="$PWD/.venv/bin:$PATH" PYTHONPATH="$PWD"

work="$(mktemp -d)"
pids=()
clean_up() {
    local code=$?
    for pid in "${pids[@]}"; do kill "$pid" 2>/dev/null && wait "$pid" 2>/dev/null || true; done
    ((code == 0)) || tail -n 40 "$work"/*.out "$work"/*.err >&2 || true
    rm -rf "$work"
    exit "$code"
}
trap clean_up EXIT

say() { printf '\n== %s\n' "$1"; }

wait_for() { # wait_for SECONDS COMMAND...: until it succeeds
    local until=$((SECONDS + $1))
    shift
    until "$@" >/dev/null 2>&1; do
        ((SECONDS < until)) || { echo "tour: this never came true: $*" >&2; return 1; }
        sleep 0.1
    done
}

address() { sed -n 's/.*\(http:\/\/127[^ ]*\)$/\1/p' "$1"; } # what a process said that it serves
field() { python3 -c 'import json, sys; print(json.load(sys.stdin)[sys.argv[1]])' "$1"; }

export COURIER_SECRET="whsec_$(python3 -c 'import base64, os; print(base64.b64encode(os.urandom(32)).decode())')"

say "a receiver, in a process of its own, that records every call"
python3 examples/receiver/receiver.py --port 0 --record "$work/calls.jsonl" \
    --secret-env COURIER_SECRET >"$work/receiver.out" 2>"$work/receiver.err" &
pids+=($!)
wait_for 30 grep -q listens "$work/receiver.out"
courier="$(address "$work/receiver.out")"

say "the service, with a lane that pushes to it"
sed "s,http://127.0.0.1:8430,$courier," examples/tour.toml >"$work/unrewind.toml"
export UNREWIND_CONFIG="$work/unrewind.toml" UNREWIND_DATA="$work/data"
unrewind serve --port 0 >"$work/serve.out" 2>"$work/serve.err" &
pids+=($!)
wait_for 60 grep -q serves "$work/serve.out"
service="$(address "$work/serve.out")"
TOKEN="$(unrewind token create --role operator)"
export TOKEN

decide() { # decide OPERATION ENTITY ACTION [VERSION]
    curl --fail-with-body -s "$service/v1/main/decisions" \
        -H "Authorization: Bearer $TOKEN" -H "Content-Type: application/json" \
        -d "{\"operation\": \"$1\", \"entity\": \"$2\", \"action\": \"$3\", \"version\": ${4:-null}, \"body\": {\"recipient\": \"mira@example.org\"}}" |
        python3 -c 'import json, sys; told = json.load(sys.stdin); print(*(told[key] for key in ("operation", "outcome", "entity", "state")), *told["releases"])'
}
status_of() { unrewind releases --json --entity "$1" | python3 -c 'import json, sys; print(json.load(sys.stdin)["items"][0]["status"])'; }
has_status() { [[ "$(status_of "$1")" == "$2" ]]; }

say "the first document: submitted, approved, released; the courier gets it"
decide tour-1 document/inv-1 submit
decide tour-2 document/inv-1 approve '"v1"'
decide tour-3 document/inv-1 release '"v1"'
wait_for 30 has_status document/inv-1 done
unrewind where tour-3

say "the second document: cancelled while its lane is paused, before any commitment"
unrewind lanes pause delivery --reason "tour: time to think again"
decide tour-4 document/inv-2 submit
decide tour-5 document/inv-2 approve '"v1"'
decide tour-6 document/inv-2 release '"v1"'
decide tour-7 document/inv-2 cancel
unrewind lanes resume delivery --reason "tour: thought"
has_status document/inv-2 cancelled

say "a letter: a worker of our own claims it, does it, and confirms"
decide tour-8 letter/l-3 submit
decide tour-9 letter/l-3 approve '"v1"'
python3 examples/worker.py "$service" counter "$work/handed-over.jsonl"
has_status letter/l-3 done
unrewind where tour-9

say "both ends agree, by release ID"
unrewind releases --json --status done |
    python3 -c '
import json, pathlib, sys
work = pathlib.Path(sys.argv[1])
ours = {item["id"] for item in json.load(sys.stdin)["items"]}
calls = [json.loads(line) for line in (work / "calls.jsonl").read_text().splitlines()]
theirs = [call["release"] for call in calls if call["kind"] == "call" and call["executed"]]
letters = [json.loads(line)["release"] for line in (work / "handed-over.jsonl").read_text().splitlines()]
done = theirs + letters
assert len(done) == len(set(done)), f"an effect happened twice: {done}"
assert set(done) == ours, f"they differ: here {sorted(ours)}, there {sorted(done)}"
print(f"{len(ours)} released here, {len(done)} executed there, the same IDs; 0 twice")
' "$work"
unrewind verify
