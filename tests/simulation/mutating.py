"""Mutating: a fault is put into the code before a world begins. Every one has to be found.

``python -m tests.simulation --mutant NAME`` runs seeds with one, ``--mutants`` each of them until a
seed finds it.
"""

from __future__ import annotations

import importlib
import inspect
import textwrap
from collections.abc import Callable
from typing import Any

from msgspec import Struct


class Mutant(Struct, frozen=True):
    """A function by its place, ``module:name`` or ``module:Class.name``, and what changes in it.

    ``old`` MUST stand in its source exactly once. ``promise`` is what it breaks, ``seed`` one that
    finds it: where it has to be looked for, that is asked first. ``also`` is what would hide it: a
    rule that is kept at two places has to be broken at both.
    """

    promise: str
    where: str
    old: str
    new: str
    seed: int = 1
    also: tuple[tuple[str, str, str], ...] = ()


def apply(mutant: Mutant) -> None:
    """Put a mutant in the place of the code, wherever that has been imported."""
    for where, old, new in ((mutant.where, mutant.old, mutant.new), *mutant.also):
        _change(where, old, new)


def _change(where: str, old: str, new: str) -> None:
    module_name, _, path = where.partition(":")
    module = importlib.import_module(module_name)
    owner: Any = module
    *outer, last = path.split(".")
    for part in outer:
        owner = getattr(owner, part)
    original = getattr(owner, last)
    made = _mutated(original, where, old, new, vars(module))
    setattr(owner, last, made)
    if owner is module:
        _everywhere(original, made, last)


def _mutated(
    original: Callable[..., Any], where: str, old: str, new: str, names: dict[str, Any]
) -> Any:
    source = textwrap.dedent(inspect.getsource(original))
    if source.count(old) != 1:
        raise LookupError(f"{where} holds {source.count(old)} times: {old}")
    found: dict[str, Any] = {}
    code = f"from __future__ import annotations\n{source.replace(old, new)}"
    exec(compile(code, where, "exec"), names, found)  # noqa: S102 - our own source
    return found[original.__name__]


def _everywhere(original: Any, made: Any, name: str) -> None:
    """Modules that imported a function by its name have it under that name."""
    import sys

    for module in [*sys.modules.values()]:
        if getattr(module, name, None) is original and module.__name__.split(".")[0] in _OURS:
            setattr(module, name, made)


_OURS = frozenset({"journal", "reconstruct", "api"})
