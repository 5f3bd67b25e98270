"""The OpenAPI document, built from what the handlers say of themselves.

The handlers read and write bytes, so nothing could be found out from their signatures. A test
compares the document with the routes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec
from litestar import Litestar
from litestar.routes import HTTPRoute

from api.calls import CALL, Call, Parameter
from api.problems import BY_SLUG, REPEAT, Kind

_REF = "#/components/schemas/{name}"
_EVERY = ("invalid",)
_AUTHENTICATED = ("unauthenticated", "forbidden", "journal-unavailable", "recovering", "busy")

_PROBLEM = {
    "title": "Problem",
    "description": "A problem document (RFC 9457), with further members that the type explains.",
    "type": "object",
    "properties": {
        "type": {"type": "string", "enum": [f"/problems/{slug}" for slug in BY_SLUG]},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string"},
        "instance": {"type": "string"},
        "repeat": {"const": REPEAT},
    },
    "required": ["type", "title", "status", "detail"],
}


def document(app: Litestar, version: str) -> dict[str, Any]:
    """The document of every call that the application answers."""
    # Sorted, for a handler keeps its several paths in no order.
    calls = sorted(_calls(app), key=lambda each: each[:2])
    kinds = [kind for _, _, _, call in calls for kind in _types(call)]
    (schemas, components) = msgspec.json.schema_components(kinds, ref_template=_REF)
    named = dict(zip(map(repr, kinds), schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    known: Counter[str] = Counter()
    for path, method, name, call in calls:
        known[name] += 1
        identity = name if known[name] == 1 else f"{name}_{known[name]}"
        paths.setdefault(path, {})[method.lower()] = _operation(identity, call, named)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "unrewind",
            "version": version,
            "description": "A recovery journal: an acknowledged decision survives a rewind of the "
            "store. Every call but health, schema and problems needs a bearer token.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": paths,
        "components": {
            "schemas": {**components, "Problem": _PROBLEM},
            "securitySchemes": {
                "token": {"type": "http", "scheme": "bearer", "bearerFormat": "unr_<id>_<secret>"}
            },
        },
    }


def _calls(app: Litestar) -> Iterator[tuple[str, str, str, Call]]:
    for route in app.routes:
        if not isinstance(route, HTTPRoute):
            continue
        for handler in route.route_handlers:
            call = handler.opt.get(CALL)
            if call is None:
                continue
            for method in sorted(handler.http_methods):
                yield route.path_format, method, handler.handler_name, call


def _types(call: Call) -> Iterator[Any]:
    yield from (kind for kind in call.answers.values() if kind is not None)
    if call.body is not None:
        yield call.body


def _operation(name: str, call: Call, named: dict[str, Any]) -> dict[str, Any]:
    operation: dict[str, Any] = {"operationId": name, "summary": call.about}
    if call.parameters:
        operation["parameters"] = [_parameter(parameter) for parameter in call.parameters]
    if call.body is not None:
        operation["requestBody"] = {
            "required": not call.body_optional,
            "content": {"application/json": {"schema": named[repr(call.body)]}},
        }
    answers: dict[str, Any] = {}
    for status, kind in call.answers.items():
        answers[str(status)] = {"description": _SUCCESS[status]}
        if kind is not None:
            answers[str(status)]["content"] = {call.media_type: {"schema": named[repr(kind)]}}
    slugs = {*call.problems, *_EVERY}
    if call.needs is None:
        operation["security"] = []
    else:
        operation["security"] = [{"token": []}]
        operation["description"] = f"Needs the role {call.needs}."
        slugs.update(_AUTHENTICATED)
    answers.update(_problems(BY_SLUG[slug] for slug in sorted(slugs)))
    operation["responses"] = answers
    return operation


_SUCCESS = {
    200: "The answer.",
    201: "Made, and kept.",
    202: "Taken; not all that was asked for has come about.",
}


def _parameter(parameter: Parameter) -> dict[str, Any]:
    return {
        "name": parameter.name,
        "in": parameter.where,
        "required": parameter.required or parameter.where == "path",
        "description": parameter.about,
        "schema": parameter.schema,
    }


def _problems(kinds: Iterable[Kind]) -> dict[str, Any]:
    by_status: dict[int, list[Kind]] = {}
    for kind in kinds:
        by_status.setdefault(kind.status, []).append(kind)
    answers: dict[str, Any] = {}
    for status, group in sorted(by_status.items()):
        said = "; ".join(f"{kind.title} (`{kind.slug}`)" for kind in group)
        answer: dict[str, Any] = {
            "description": f"{said}.",
            "content": {
                "application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}
            },
        }
        if all(kind.retry_after is not None for kind in group):
            answer["headers"] = {
                "Retry-After": {"description": "Seconds.", "schema": {"type": "integer"}}
            }
        answers[str(status)] = answer
    return answers
