"""A side that runs in process gets a process of its own: no heap, cache or thread of the other."""

import multiprocessing
import resource
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from typing import Any, Generic, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True)
class Outcome(Generic[T]):
    """What the function returned, and the most memory that its process held at once, in bytes."""

    value: T
    peak: int


def isolated(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call a module's function in a new process; its exception is raised here."""
    return observed(function, *args, **kwargs).value


def observed(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Outcome[T]:
    """As `isolated`, with the peak memory of that process."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(max_workers=1, mp_context=context) as pool:
        value, peak = pool.submit(_call, function, args, kwargs).result()
    return Outcome(value, peak)


def _call(function: Callable[..., T], args: Any, kwargs: Any) -> tuple[T, int]:
    value = function(*args, **kwargs)
    usage = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    unit = 1 if sys.platform == "darwin" else 1024
    return value, max(used.ru_maxrss for used in usage) * unit
