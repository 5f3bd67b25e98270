"""The receiver as a program: its flags, its routes, and its life from start to signal."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec
from msgspec import Struct
from standardwebhooks.webhooks import EmptyWebhookSecretError, Webhook

from examples.receiver.behaviours import Rules, rule_of
from examples.receiver.callbacks import Callbacks
from examples.receiver.calls import Contract, Terms
from examples.receiver.control import Control
from examples.receiver.delivery import Delivery
from examples.receiver.memory import Memory
from examples.receiver.record import Record, RecordInUse
from examples.receiver.wire import Answer, Request, answer_json, listen, problem

STATUS = "/status/"


class Which(Struct, frozen=True):
    """As much of a line as a question about the record may name."""

    kind: str
    release: str | None


class Service:
    """The routes: two for callers, the others for whoever tests them."""

    def __init__(self, delivery: Delivery, control: Control) -> None:
        self.delivery = delivery
        self.control = control

    async def answer(self, request: Request) -> Answer:
        """Send a request where it belongs."""
        match request.method, request.path:
            case "POST", "/releases":
                return await self.delivery.call(request)
            case "GET", path if path.startswith(STATUS):
                return await self.delivery.look_up(path.removeprefix(STATUS), request)
            case "POST", "/control":
                return await self.control.command(request.body)
            case "GET", "/calls":
                return self._calls(request.query)
            case "GET", "/health":
                return answer_json(200, {"status": "ok", "contract": self.delivery.terms.contract})
        return problem(404, f"there is no {request.method} {request.path}")

    def _calls(self, query: dict[str, str]) -> Answer:
        """The record's lines, all or those of one ``release`` or ``kind``, and the counts."""
        decoder = msgspec.json.Decoder(Which)
        lines = []
        for raw in self.delivery.record.raw():
            line = decoder.decode(raw)
            if all(getattr(line, name, None) == value for name, value in query.items()):
                lines.append(msgspec.Raw(raw.rstrip()))
        releases = {
            release: {"attempts": count.attempts, "executions": count.executions}
            for release, count in self.delivery.memory.counts.items()
            if query.get("release", release) == release
        }
        return answer_json(200, {"calls": lines, "releases": releases})


def main(given: Sequence[str] | None = None) -> int:
    """Run until SIGTERM or SIGINT. Returns the exit code."""
    parser = _parser()
    flags = parser.parse_args(given)
    try:
        record = Record(flags.record)
        rules = Rules(tuple(rule_of(text) for text in flags.behave))
        webhook = _secret(flags.secret_env)
        terms = Terms(Contract(flags.contract), _variable(flags.token_env), webhook)
        delivery = Delivery(terms, record, Memory(flags.window), rules)
        delivery.remember()
        callbacks = Callbacks(
            delivery,
            flags.callback,
            _variable(flags.callback_token_env),
            _secret(flags.callback_secret_env),
        )
    except (ValueError, OSError, RecordInUse) as error:
        print(f"receiver: {error}", file=sys.stderr)
        return 2
    delivery.follow_up = callbacks.follow_up
    service = Service(delivery, Control(delivery, rules, callbacks))
    code = asyncio.run(_run(service, flags.host, flags.port))
    record.close()
    return code


async def _run(service: Service, host: str, port: int) -> int:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    service.delivery.resume()
    try:
        server = await listen(host, port, service.answer)
    except OSError as error:
        print(f"receiver: cannot listen on {host}:{port}: {error.strerror}", file=sys.stderr)
        return 2
    taken = server.sockets[0].getsockname()[1]
    print(f"receiver listens on http://{host}:{taken}", flush=True)
    await stop.wait()
    server.close()
    return 0


def _variable(name: str | None) -> str | None:
    if name is None:
        return None
    if not (value := os.environ.get(name)):
        raise ValueError(f"the environment variable {name} is not set")
    return value


def _secret(name: str | None) -> Webhook | None:
    value = _variable(name)
    if value is None:
        return None
    try:
        return Webhook(value)
    except (ValueError, EmptyWebhookSecretError):
        raise ValueError(f"{name} must hold whsec_ and a secret in base64") from None


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="receiver.py", description="Plays the service at the far end of a lane."
    )
    add = parser.add_argument
    add("--host", default="127.0.0.1")
    add("--port", type=int, default=8430, help="default 8430; 0 takes a free one")
    add("--record", type=Path, required=True, metavar="FILE", help="what was asked and done")
    add("--contract", choices=[*Contract], default=Contract.IDEMPOTENT, help="default idempotent")
    add("--window", type=float, metavar="SECONDS", help="forget an ID after so long")
    add("--secret-env", metavar="NAME", help="variable with the secret that calls are signed with")
    add("--token-env", metavar="NAME", help="variable with the bearer token that calls carry")
    add("--callback", metavar="URL", help="where callbacks go")
    add("--callback-token-env", metavar="NAME", help="variable with the token they carry")
    add("--callback-secret-env", metavar="NAME", help="variable with the secret they are signed by")
    add(
        "--behave",
        action="append",
        default=[],
        metavar="NAME|JSON",
        help='misbehave from the start: lose-reply, or {"behave": "delay", "seconds": 2}',
    )
    return parser
