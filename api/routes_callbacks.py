"""Callbacks: a receiver says that something has changed, and is asked.

    bearer ──► whose it is ──► signature over the raw bytes ──► release ──► ID remembered, woken

Nothing of a body is read before its signature is found right. A callback is a wake-up: what it says
of an outcome is not even looked at.
"""

from __future__ import annotations

import logging
import os
from typing import Annotated, Any

from litestar import Request, post
from msgspec import Meta, Struct

from api import problems
from api.answers import Answer, reply
from api.calls import RECEIVER, SIGNED, Call, described
from api.requests import (
    MAX_WORK_ID,
    body_of,
    journal_of,
    path_value,
    query,
    served_of,
    shape,
    work_id,
)
from api.signing import ID, SIGNATURE, TIMESTAMP, CallbackRefused, check_secret, verify_callback
from journal.callbacks import hear
from journal.control import Role, Token
from journal.errors import Forbidden, NotFound, Refused, SettingsInvalid, UnrewindError
from journal.lanes import Receiver
from journal.work import note

LOGGER = logging.getLogger("unrewind")

MAX_CALLBACK = 65_536
"""Bytes of the largest callback: it names a release."""

_SIGNED = {name.encode(): name for name in (ID, TIMESTAMP, SIGNATURE)}


class CallbackRequest(Struct):
    """The release that has changed. What else a receiver says is not looked at."""

    release: Annotated[str, Meta(min_length=1, max_length=MAX_WORK_ID)]


class CallbackTaken(Struct, frozen=True):
    """The callback is taken. `woken`: the receiver is asked about the release at once."""

    release: str
    woken: bool


class CallbackSeen(Struct, frozen=True):
    """This callback was taken before, so nothing is done."""

    woken: bool = False
    seen: bool = True


_CALLBACK = shape(CallbackRequest)


def refuse(request: Request[Any, Any, Any], error: Exception) -> Any:
    """The answer to a callback that was not taken, which is logged: without its body or secrets."""
    if isinstance(error, UnrewindError) and problems.kind_of(error).status < 500:  # noqa: PLR2004 - the caller's
        _warn(request, f"refused: {error.detail}")
    return problems.handle(request, error)


def _warn(request: Request[Any, Any, Any], what: str) -> None:
    name = request.scope.get("path_params", {}).get("receiver", "")
    LOGGER.warning("callback of receiver %s %s", note(str(name)), note(what))


@post(
    "/callbacks/{receiver:str}",
    status_code=202,
    exception_handlers={Exception: refuse},
    opt=described(
        Call(
            "Say that a release may have changed, so that its receiver is asked about it. The "
            "token has the receiver's name. 200: this callback was taken before.",
            Role.RECEIVER,
            {202: CallbackTaken, 200: CallbackSeen},
            (
                "not-found",
                "refused",
                "request-timeout",
                "too-large",
                "unsupported-media-type",
            ),
            body=CallbackRequest,
            parameters=(RECEIVER, *SIGNED),
        )
    ),
)
async def take_callback(request: Request[Any, Any, Any]) -> Answer:
    """`POST callbacks/{receiver}`."""
    name, receiver = _receiver(request)
    query(request)
    secret = _secret(name, receiver)
    content = await body_of(request, MAX_CALLBACK)
    identity = verify_callback(secret, _signed(request), content)
    said: CallbackRequest = _CALLBACK.read(content)
    release = work_id("release", said.release)
    heard = await journal_of(request).write(hear, name, identity, release)
    if heard.seen:
        _warn(request, "was taken before: nothing is done")
        return reply(CallbackSeen())
    if heard.woken:
        served_of(request).dispatches.wake()
    return reply(CallbackTaken(release, heard.woken), 202)


def _receiver(request: Request[Any, Any, Any]) -> tuple[str, Receiver]:
    """The receiver that calls back: the one that the path and the token both name."""
    token: Token = request.scope["auth"]
    name = path_value(request, "receiver")
    if token.name != name:
        raise Forbidden(
            f"the token {token.id} is not this receiver's: its name is another",
            needed=str(Role.RECEIVER),
            role=str(token.role),
        )
    receiver = journal_of(request).settings.receiver.get(name)
    if receiver is None:
        raise NotFound(f"there is no receiver {name}; [receiver.{name}] would declare it")
    return name, receiver


def _secret(name: str, receiver: Receiver) -> str:
    """The secret under which the receiver signs. Raises Refused where there is none."""
    variable = receiver.callback_secret_env
    if variable is None:
        raise Refused(
            f"receiver {name} has no callback secret: name the environment variable that holds it "
            f"as callback_secret_env in [receiver.{name}]"
        )
    secret = os.environ.get(variable, "")
    try:
        check_secret(variable, secret)
    except SettingsInvalid as error:
        raise Refused(f"receiver {name} cannot call back: {error.detail}") from None
    return secret


def _signed(request: Request[Any, Any, Any]) -> dict[str, str]:
    """The headers of the signature. Raises CallbackRefused for one that was sent twice."""
    given: dict[str, str] = {}
    for name, value in request.scope["headers"]:
        known = _SIGNED.get(name)
        if known is None:
            continue
        if known in given:
            raise CallbackRefused(f"{known} was sent twice")
        given[known] = value.decode("latin-1")
    return given


ROUTES = [take_callback]
