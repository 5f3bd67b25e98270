"""A worker that pulls: claims one release of a lane, does it, and reports what became of it.

    python3 examples/worker.py http://127.0.0.1:8420 counter done.jsonl

The token is read from TOKEN. What it does here is write a line to a file; yours may call a payment
SDK or let an agent's tool run. Its right to do so is the permit, given after the commitment stands
in the journal.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from api.client import Client


def main(url: str, lane: str, path: Path) -> int:
    """Do one piece of the lane's work; 1 when there is none."""
    with (
        Client(url, os.environ["TOKEN"]) as client,
        client.permit(lane, worker="counter-1", execution="tour/run-1") as permit,
    ):
        if permit is None:
            return 1
        with path.open("a", encoding="utf-8") as done:
            done.write(json.dumps({"release": permit.id, "entity": permit.grant.entity}) + "\n")
        permit.confirm(receipt=f"counter-{permit.id[4:12]}")
    return 0


if __name__ == "__main__":
    if len(sys.argv) != 4:  # noqa: PLR2004
        sys.exit("usage: worker.py URL LANE FILE")
    sys.exit(main(sys.argv[1], sys.argv[2], Path(sys.argv[3])))
