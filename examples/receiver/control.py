"""Commands to the receiver: what to do next, what to finish, which callback to send."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from examples.receiver.behaviours import CallbackKind, Rules, rule_of
from examples.receiver.callbacks import Callbacks
from examples.receiver.delivery import Delivery, NotPossible
from examples.receiver.wire import Answer, answer_json, problem


class Command(Struct, frozen=True, forbid_unknown_fields=True):
    """A command is a JSON object, known by its first field's name."""


class Finish(Command, frozen=True, rename={"state": "as"}):
    """End the work on a release now; ``"as": "void"`` gives up an ID that was never seen, too."""

    finish: str
    state: Literal["done", "refused", "void"] = "done"


class Forget(Command, frozen=True):
    """Forget an ID, as at the end of the window."""

    forget: str


class CallBack(Command, frozen=True):
    """Send a callback, after so many seconds; the answer tells what it was answered."""

    callback: CallbackKind
    release: str
    seconds: Annotated[float, Meta(ge=0, le=300)] = 0.0


class CallBackTo(Command, frozen=True):
    """Where callbacks go from now on, and the bearer token that they carry."""

    call_back_to: str
    token: str | None = None


class Clear(Command, frozen=True):
    """Drop every behaviour that was told."""

    clear: Literal[True]


COMMANDS: dict[str, type[Command]] = {
    "finish": Finish,
    "forget": Forget,
    "callback": CallBack,
    "call_back_to": CallBackTo,
    "clear": Clear,
}


class Control:
    """Carries out commands. A command that makes no sense changes nothing and is told so."""

    def __init__(self, delivery: Delivery, rules: Rules, callbacks: Callbacks) -> None:
        self.delivery = delivery
        self.rules = rules
        self.callbacks = callbacks

    async def command(self, body: bytes) -> Answer:
        """Carry out the command in a request's body."""
        try:
            return answer_json(200, await self._obey(body))
        except (msgspec.MsgspecError, ValueError) as error:
            return problem(400, str(error))
        except NotPossible as error:
            return problem(409, str(error))

    async def _obey(self, body: bytes) -> dict[str, Any]:
        given = msgspec.json.decode(body, type=dict[str, Any])
        if "behave" in given:
            rule = rule_of(body)
            self.rules.tell(rule)
            return {"told": rule}
        name = next((name for name in COMMANDS if name in given), None)
        if name is None:
            raise ValueError(f"name a command: behave, {', '.join(COMMANDS)}")
        match msgspec.json.decode(body, type=COMMANDS[name]):
            case Finish(finish=release, state=state):
                self.delivery.finish(release, state)
            case Forget(forget=release):
                self.delivery.forget(release)
            case CallBack(callback=kind, release=release, seconds=seconds):
                return {"sent": await self.callbacks.send(release, kind, seconds)}
            case CallBackTo(call_back_to=url, token=token):
                self.callbacks.url, self.callbacks.token = url, token
            case Clear():
                self.rules.clear()
        return {"done": name}
