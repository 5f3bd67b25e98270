"""`unrewind dispatch`: carry out the work of the lanes in a process of its own."""

from __future__ import annotations

import msgspec

from api.cli.program import common, examples, main, settings


@main.command("dispatch", epilog=examples("unrewind dispatch", "unrewind dispatch --data data"))
@common
def dispatch() -> int:
    """Call the receivers, and run the handlers, of every lane that has one.

    A server does this too unless its setting `dispatch` is false; several processes share the
    lanes' budgets through the store. Ends on SIGINT or SIGTERM, when what is under way has ended.
    """
    from api.dispatching import dispatch as run

    return run(msgspec.structs.replace(settings(), dispatch=True))
