"""The worker: claims a permit, pays through the bank, and reports what became of it.

A permit is there once the journal holds the commitment. This bank pays at every call, so nothing
but the permits keeps a payment from being made twice; one whose outcome is not known would be held
for a person.
"""

from __future__ import annotations

import http.client
import json
from urllib.parse import urlsplit

from api.client import Client


def work(service: str, token: str, bank: str) -> list[str]:
    """Do everything that is due; the releases that were paid."""
    paid: list[str] = []
    with Client(service, token, tenant="payouts") as client:
        while True:
            with client.permit("bank", worker="payer-1", execution=f"run-{len(paid)}") as permit:
                if permit is None:
                    return paid
                permit.confirm(receipt=_pay(bank, permit.id))
                paid.append(permit.id)


def _pay(bank: str, release: str) -> str:
    """Pay once; the bank's receipt."""
    where = urlsplit(bank)
    connection = http.client.HTTPConnection(where.hostname or "", where.port, timeout=30)
    try:
        body = json.dumps({"release": release, "digest": None})
        connection.request("POST", "/releases", body)
        receipt: str = json.loads(connection.getresponse().read())["receipt"]
        return receipt
    finally:
        connection.close()
