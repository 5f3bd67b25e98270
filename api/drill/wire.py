"""Calls of the drill to the service and the receiver, each on a connection of its own."""

from __future__ import annotations

import json
from contextlib import closing
from http.client import HTTPConnection, HTTPException
from typing import Any

SECONDS = 30.0


class Unanswered(Exception):
    """No answer came: what was asked may have happened or not."""


def call(
    port: int, token: str | None, method: str, path: str, content: Any = None
) -> tuple[int, Any]:
    """One request; status and JSON. Raises Unanswered."""
    headers = {"connection": "close"}
    if token is not None:
        headers["authorization"] = f"Bearer {token}"
    body = None
    if content is not None:
        body = json.dumps(content).encode()
        headers["content-type"] = "application/json"
    try:
        with closing(HTTPConnection("127.0.0.1", port, timeout=SECONDS)) as connection:
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            text = answer.read()
            return answer.status, json.loads(text) if text else None
    except (OSError, HTTPException, ValueError) as error:
        raise Unanswered(f"{method} {path}: {type(error).__name__}: {error}") from None
