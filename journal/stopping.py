"""Stopping one entity type, or one of its actions, alone; and letting it go on.

A stop is an entry of control, so it survives a rewind and works in any stage. While it stands no
operation of it is accepted and nothing that it permitted begins; everything else goes on.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from journal import decrees
from journal.control import Authority, Control, Hold, hold_name
from journal.detection import Verdict
from journal.entry import MAX_STRING, Entry, check_name
from journal.errors import Invalid, NotFound, Refused, UnrewindError
from journal.holding import say
from journal.lifecycle import RELEASE_ACTIONS, Kind
from journal.record import Record
from journal.reports import write
from journal.standing import append_control
from journal.store import work as works

_Build = Callable[[Control], tuple[Entry, Authority] | None]


async def stop_action(
    record: Record, kind: str, action: str | None, reason: str, principal: str | None = None
) -> Hold:
    """Stop an entity type, or one of its actions; the stop, as it stands. Again, nothing changes.

    Raises NotFound for a type or action that is not declared, Invalid, Refused or
    JournalUnavailable.
    """
    check_name("reason", reason, MAX_STRING)
    check_stoppable(record, kind, action)
    name = hold_name(kind, action)

    def build(control: Control) -> tuple[Entry, Authority] | None:
        if name in control.holds:
            return None
        entry = decrees.hold_entry(
            control, kind, action, reason, _fresh(record), record.clock.now(), principal
        )
        return entry, control.authority

    return (await _change(record, build)).holds[name]


async def resume_action(
    record: Record, kind: str, action: str | None, reason: str, principal: str | None = None
) -> list[Hold]:
    """Let a type or an action go on; what of this type is still stopped. Again, nothing changes.

    Raises NotFound for a name that is neither stopped nor declared, Invalid, Refused where the
    whole type is stopped and one action is named, or JournalUnavailable.
    """
    check_name("reason", reason, MAX_STRING)
    name = hold_name(kind, action)
    ended: list[Hold] = []

    def build(control: Control) -> tuple[Entry, Authority] | None:
        hold = control.holds.get(name)
        if hold is None:
            check_stoppable(record, kind, action)
            if kind in control.holds:
                raise Refused(f"{kind} is stopped as a whole: resume {kind}, not {name}")
            return None
        entry = decrees.hold_entry(
            control,
            kind,
            action,
            reason,
            _fresh(record),
            record.clock.now(),
            principal,
            held=False,
        )
        ended.append(hold)
        return entry, control.authority

    control = await _change(record, build)
    for hold in ended:
        # What was set aside comes back by itself where the store cannot be written now.
        with suppress(UnrewindError):
            await write(record, [works.let_go(f"held: {say(hold)}")])
    return [hold for hold in control.holds.values() if hold.kind == kind]


async def stops(record: Record) -> list[Hold]:
    """Every stop that stands, by name. Raises ControlUnreadable or JournalUnavailable."""
    control = await record.current_control(await record.look())
    return [control.holds[name] for name in sorted(control.holds)]


def name_of(text: str) -> tuple[str, str | None]:
    """The type and the action (None: the whole type) of `TYPE` or `TYPE/ACTION`."""
    kind, slash, action = text.partition("/")
    return kind, action if slash else None


def check_stoppable(record: Record, kind: str, action: str | None) -> None:
    """Refuse a name that would stop nothing. Raises NotFound or Invalid."""
    lifecycle = record.lifecycles.get(kind)
    if lifecycle is None:
        known = ", ".join(sorted(record.lifecycles))
        raise NotFound(f"there is no entity type {kind}; declared: {known}", type=kind)
    if action is None:
        return
    if action.startswith(RELEASE_ACTIONS):
        raise Invalid(
            f"{action} says what became of a release, which is always taken: stop the action that "
            "permits releases, or pause their lane",
            field="action",
        )
    if lifecycle.kind is Kind.DECLARED and action not in lifecycle.actions:
        known = ", ".join(a for a in sorted(lifecycle.actions) if not a.startswith(RELEASE_ACTIONS))
        raise NotFound(f"{kind} has no action {action}; declared: {known}", action=action)
    check_name("action", action, MAX_STRING)


def _fresh(record: Record) -> str:
    return f"control-{record.clock.fresh()}"


async def _change(record: Record, build: _Build) -> Control:
    with record.lock.held():
        finding, _ = await record.examine()
        if finding.verdict in {Verdict.JOURNAL_REWOUND, Verdict.CLOSED}:
            raise Refused(f"nothing is written to this journal: {finding.detail}")
        return await append_control(record, build)
