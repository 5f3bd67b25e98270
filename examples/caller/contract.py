"""A caller that owns its store: seals two decisions of a contract, with only the standard library.

    python3 examples/caller/contract.py approve   # revision 1, as a body for POST /v1/main/entries
    python3 examples/caller/contract.py cancel    # revision 2, which names revision 1

Reads history and generation from the service at $UNREWIND_URL (default http://127.0.0.1:8420) with
the bearer token in $TOKEN. An application in any language does the same: an envelope in RFC 8785
form, and SHA-256 over a zero byte and its bytes.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import sys
import urllib.request
from typing import Any

CONTRACT = "contract/c-7"
DECIDED = "2026-03-02T09:00:00.000000Z"


def canonical(value: Any) -> bytes:
    """RFC 8785 for what an envelope holds: sorted ASCII keys, no floats."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def seal(
    status: dict[str, Any], revision: int, action: str, state: str, before: bytes | None
) -> tuple[bytes, bytes]:
    """The envelope of one decision, and its body."""
    body = canonical({"action": action})
    predecessor = None
    if before is not None:
        predecessor = {
            "digest": hashlib.sha256(b"\0" + before).hexdigest(),
            "history": status["history"],
            "revision": revision - 1,
        }
    envelope = {
        "v": 1,
        "tenant": status["tenant"],
        "entity": CONTRACT,
        "operation": f"contract-c-7-{action}",
        "action": action,
        "history": status["history"],
        "generation": status["generation"],
        "revision": revision,
        "predecessor": predecessor,
        "sequence": revision,
        "version": None,
        "actor": "ines",
        "principal": None,
        "at": DECIDED,
        "recorded": DECIDED,
        "lifecycle": "1",
        "outcome": {"data": None, "state": state},
        "releases": [],
        "body": {
            "sha256": hashlib.sha256(body).hexdigest(),
            "size": len(body),
            "type": "application/json",
        },
    }
    return canonical(envelope), body


def status_of(url: str, token: str) -> dict[str, Any]:
    """What the service says of the history and generation in force."""
    request = urllib.request.Request(  # noqa: S310 - the operator names the address
        f"{url}/v1/main/status", headers={"Authorization": f"Bearer {token}"}
    )
    with urllib.request.urlopen(request, timeout=10) as answer:  # noqa: S310 - as above
        found: dict[str, Any] = json.load(answer)
    return found


def main(action: str) -> None:
    """Print the request body that appends the decision."""
    url = os.environ.get("UNREWIND_URL", "http://127.0.0.1:8420")
    status = status_of(url, os.environ["TOKEN"])
    approved, approved_body = seal(status, 1, "approve", "approved", None)
    cancelled, cancelled_body = seal(status, 2, "cancel", "cancelled", approved)
    envelope, body = {
        "approve": (approved, approved_body),
        "cancel": (cancelled, cancelled_body),
    }[action]
    entry = {"envelope": envelope.decode(), "body": base64.b64encode(body).decode()}
    print(json.dumps({"entries": [entry]}))


if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1] not in {"approve", "cancel"}:  # noqa: PLR2004
        sys.exit("usage: contract.py approve|cancel")
    main(sys.argv[1])
