"""Acceptance: which of the waiting operations become decisions, and which.

Pure and synchronous: operations and a view of journalled state in, rulings out. The writer reads
the view, commits the decisions to the store, appends them to the journal, and only then answers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct

from journal.data import EMPTY, after, hash_of
from journal.entry import (
    GENESIS,
    MAX_ACTION,
    MAX_OPERATION,
    NO_BODY_TYPE,
    Entry,
    Envelope,
    Outcome,
    Predecessor,
    Release,
    body_of,
    check_entity,
    check_name,
    check_string,
    check_text,
    check_time,
    seal,
)
from journal.errors import (
    HistoryIncomplete,
    Invalid,
    NotFound,
    OperationReused,
    RevisionMismatch,
    TransitionRefused,
    UnrewindError,
)
from journal.folding import fold
from journal.lanes import Effect
from journal.lifecycle import (
    RELEASE_ACTIONS,
    Lifecycle,
    Owner,
    check_content,
    is_baseline,
    lifecycle_of,
    step,
    step_of_release,
)
from journal.release import REPORT_TYPE, Rules, check_report, is_report, permitted, report_of
from journal.work import Status, Work

ACCEPTED = "accepted"
DUPLICATE = "duplicate"
COMMITTED_ACTION = "release.committed"
CONFIRMED_ACTION = "release.confirmed"


class Operation(Struct, frozen=True, gc=False):
    """A caller's intention, under an ID that the caller chose.

    ``at`` is in the entry format's form or None (then it is the time of recording). ``body`` is
    kept byte for byte. ``expected_revision`` is a precondition, not part of the intention: a repeat
    with another one is still the same operation.
    """

    operation: str
    entity: str
    action: str
    body: bytes = b""
    body_type: str = NO_BODY_TYPE
    version: str | None = None
    expected_revision: int | None = None
    actor: str | None = None
    principal: str | None = None
    at: str | None = None


class Acceptance(Struct, frozen=True, gc=False):
    """The receipt for an operation: the decision it became, now or earlier.

    ``durable_through`` is the revision through which the journal held the entity's history without
    a gap when this decision was acknowledged. ``releases`` are the IDs that the decision permits,
    ``existing`` those among them that were there before and are made no second time, ``commands``
    the IDs of the internal work that it asks for; a repeat names the releases alone.
    """

    operation: str
    outcome: str
    entity: str
    version: str | None
    revision: int
    predecessor: Predecessor | None
    history: str
    generation: int
    sequence: int | None
    digest: str
    state: str
    durable_through: int
    releases: tuple[str, ...] = ()
    existing: tuple[str, ...] = ()
    commands: tuple[str, ...] = ()


class Place(Struct, frozen=True):
    """A place in the tenant's one order: the store's marker, or the journal's tip."""

    history: str
    generation: int
    sequence: int
    digest: str


class EntityHead(Struct, frozen=True, array_like=True, gc=False):
    """An entity as the store holds it after its last decision. ``data`` is stored text."""

    entity: str
    revision: int
    history: str
    digest: str
    sequence: int
    state: str
    version: str | None
    data: str


class Decision(Struct, frozen=True, gc=False):
    """An entry together with the entity row that it leads to."""

    entry: Entry
    data: bytes
    owner: Owner


class Context(Struct, frozen=True):
    """What a batch is judged against besides the store: rules, time, and what may begin now.

    ``admit`` raises Overloaded where a lane takes no more of what an operation would add to it,
    ``begins`` Held where this action of an entity is stopped, ``commits`` Recovering or Held where
    a release may not leave now.
    """

    rules: Rules
    recorded: str
    admit: Callable[[Sequence[Work]], None] = lambda _: None
    begins: Callable[[str, str], None] = lambda *_: None
    commits: Callable[[Work], None] = lambda _: None


class View(Struct, frozen=True):
    """Journalled state that a batch is judged against. ``known`` is keyed by operation ID.

    A known operation whose entry cannot be read stands there as the error that says so.
    ``incomplete`` gives the durable boundary of each entity whose history is incomplete. ``work``
    holds, for each entity, the rows of work that may matter: open ones, and those that are named.
    """

    tip: Place
    heads: Mapping[str, EntityHead]
    known: Mapping[str, Entry | UnrewindError]
    incomplete: Mapping[str, int] = {}
    work: Mapping[str, Mapping[str, Work]] = {}


class Judged(Struct, frozen=True):
    """The batch's decisions in order, and for each operation its answer or its refusal.

    ``work`` has the rows of work that the decisions make or change, by ID.
    """

    decisions: tuple[Decision, ...]
    answers: tuple[Acceptance | UnrewindError, ...]
    tip: Place
    work: Mapping[str, Work]


def check_operation(
    operation: Operation, lifecycles: Mapping[str, Lifecycle], max_body: int
) -> None:
    """Refuse what could never become a decision, before it waits in a batch. Raises Invalid."""
    if not isinstance(operation.body, bytes):
        raise Invalid("a body is bytes: encode it first", field="body")
    if len(operation.body) > max_body:
        raise Invalid(f"a body may have at most {max_body} bytes", field="body", limit=max_body)
    check_name("operation", operation.operation, MAX_OPERATION)
    if operation.operation.startswith("rel_") and "/" in operation.operation:
        raise Invalid("operation IDs of the form rel_…/… are unrewind's own", field="operation")
    check_entity(operation.entity)
    lifecycle = lifecycle_of(lifecycles, operation.entity)
    if lifecycle.owner is Owner.CALLER:
        raise Invalid(
            f"{operation.entity}: this entity type is caller-owned; append its sealed entries",
            field="entity",
        )
    check_name("action", operation.action, MAX_ACTION)
    told = operation.action.startswith(RELEASE_ACTIONS)
    if operation.body_type == REPORT_TYPE or (told and lifecycle.works):
        raise Invalid(
            f"{operation.action}: what became of a release is reported to "
            "`POST releases/{id}/outcome`",
            field="action",
        )
    if is_baseline(operation.action):
        raise Invalid(
            f"{operation.action}: a baseline is taken by `unrewind adopt` alone", field="action"
        )
    check_name("body type", operation.body_type, MAX_ACTION)
    if operation.version is not None:
        check_text("version", operation.version)
    if operation.actor is not None:
        check_string("actor", operation.actor)
    if operation.principal is not None:
        check_string("principal", operation.principal)
    if operation.at is not None:
        check_time("at", operation.at)
    if operation.expected_revision is not None and operation.expected_revision < 0:
        raise Invalid("expected_revision must not be negative", field="expected_revision")


def receipt(
    entry: Entry, outcome: str, existing: tuple[str, ...] = (), commands: tuple[str, ...] = ()
) -> Acceptance:
    """The answer for an entry that the journal holds."""
    envelope = entry.envelope
    return Acceptance(
        operation=envelope.operation,
        outcome=outcome,
        entity=envelope.entity,
        version=envelope.version,
        revision=envelope.revision,
        predecessor=envelope.predecessor,
        history=envelope.history,
        generation=envelope.generation,
        sequence=envelope.sequence,
        digest=entry.digest,
        state=envelope.outcome.state,
        durable_through=envelope.revision,
        releases=tuple([release.id for release in envelope.releases]),
        existing=existing,
        commands=commands,
    )


def repeat(operation: Operation, entry: Entry) -> Acceptance:
    """The first answer again. Raises OperationReused naming the fields that differ."""
    first = entry.envelope
    body = body_of(operation.body, operation.body_type)
    version = _version_of_report(first) if operation.version is None else operation.version
    pairs = {
        "entity": (operation.entity, first.entity),
        "action": (operation.action, first.action),
        "version": (version, first.version),
        "actor": (operation.actor, first.actor),
        "body": (body, first.body),
        "at": (operation.at or first.at, first.at),
    }
    differing = [field for field, (now, then) in pairs.items() if now != then]
    if differing:
        raise OperationReused(
            f"operation {operation.operation} already belongs to {first.entity} "
            f"revision {first.revision}; this request differs in: {', '.join(differing)}",
            differing=differing,
            entity=first.entity,
            revision=first.revision,
        )
    return receipt(entry, DUPLICATE)


def _version_of_report(envelope: Envelope) -> str | None:
    return envelope.version if is_report(envelope.action, envelope.body.type) else None


def judge(operations: Sequence[Operation], view: View, context: Context) -> Judged:
    """Judge operations in order, each seeing the decisions before it.

    A known operation ID is answered before any precondition is looked at. A refusal affects its own
    operation alone. Sequences and predecessors are assigned so that the decisions continue
    ``view.tip`` and each entity's head without a hole.
    """
    heads = dict(view.heads)
    known = dict(view.known)
    work = dict(view.work)
    changed: dict[str, Work] = {}
    tip = view.tip
    decisions: list[Decision] = []
    answers: list[Acceptance | UnrewindError] = []
    for operation in operations:
        entity = operation.entity
        rows = work.get(entity, {})
        try:
            earlier = known.get(operation.operation)
            if isinstance(earlier, UnrewindError):
                raise earlier
            if earlier is not None:
                check_durable(earlier.envelope, view.incomplete)
                answers.append(repeat(operation, earlier))
                continue
            if entity in view.incomplete:
                raise HistoryIncomplete(entity=entity)
            decision = _decide(operation, heads.get(entity), rows, tip, context)
            after = fold(rows, decision.entry, decision.data, context.rules)
            made = [row for row in after.values() if _is_new(row, rows)]
            if made:
                context.admit(made)
        except UnrewindError as error:
            answers.append(error)
            continue
        entry = decision.entry
        known[operation.operation] = entry
        heads[entity] = head_after(decision)
        tip = Place(tip.history, tip.generation, tip.sequence + 1, entry.digest)
        decisions.append(decision)
        existing: tuple[str, ...] = ()
        commands: tuple[str, ...] = ()
        if after:
            work[entity] = {**rows, **after}
            changed.update(after)
            commands = tuple([row.id for row in made if row.id.startswith("cmd_")])
        if entry.envelope.releases:
            ids = {row.id for row in made}
            existing = tuple([r.id for r in entry.envelope.releases if r.id not in ids])
        answers.append(receipt(entry, ACCEPTED, existing, commands))
    return Judged(tuple(decisions), tuple(answers), tip, changed)


def _is_new(row: Work, rows: Mapping[str, Work]) -> bool:
    """Whether a decision makes this work, or revives what was cancelled."""
    before = rows.get(row.id)
    return row.status == Status.READY and (before is None or before.status != Status.READY)


def check_durable(envelope: Envelope, incomplete: Mapping[str, int]) -> None:
    """A decision beyond its entity's boundary is acknowledged to nobody, a repeat included (P5)."""
    through = incomplete.get(envelope.entity)
    if through is not None and envelope.revision > through:
        raise HistoryIncomplete(
            f"{envelope.entity} revision {envelope.revision} is in the journal, but its history is "
            f"continuous through revision {through} only",
            entity=envelope.entity,
            durable_through=through,
        )


def head_after(decision: Decision) -> EntityHead:
    """The entity row that a decision leads to."""
    envelope = decision.entry.envelope
    return EntityHead(
        entity=envelope.entity,
        revision=envelope.revision,
        history=envelope.history,
        digest=decision.entry.digest,
        sequence=envelope.sequence or 0,
        state=envelope.outcome.state,
        version=envelope.version,
        data=decision.data.decode(),
    )


def _decide(
    operation: Operation,
    head: EntityHead | None,
    rows: Mapping[str, Work],
    tip: Place,
    context: Context,
) -> Decision:
    reports = is_report(operation.action, operation.body_type)
    if not reports:
        context.begins(operation.entity, operation.action)
    revision = 0 if head is None else head.revision
    expected = operation.expected_revision
    if expected is not None and expected != revision:
        raise RevisionMismatch(
            f"{operation.entity} is at revision {revision}, not {expected}",
            entity=operation.entity,
            expected=expected,
            actual=revision,
        )
    rules = context.rules
    if reports and operation.entity.partition("/")[0] not in rules.lifecycles:
        raise HistoryIncomplete(
            f"{operation.entity}: its type is declared no more, so nothing is decided about it",
            entity=operation.entity,
        )
    lifecycle = lifecycle_of(rules.lifecycles, operation.entity)
    before = EMPTY if head is None else head.data.encode()
    releases: tuple[Release, ...] = ()
    version = operation.version
    if reports:
        state = _judge_report(operation, head, rows, lifecycle, context)
        data = before
        # A report decides on no content: what was decided on before still is.
        version = None if head is None else head.version
    else:
        state = step(
            lifecycle,
            None if head is None else head.state,
            operation.action,
            operation.version,
            None if head is None else head.version,
        )
        data = after(before, operation.body, operation.body_type)
        action = lifecycle.actions.get(operation.action)
        given = operation.body and not is_baseline(operation.action)
        if head is not None and given and head.version == operation.version is not None:
            names = {name: lane.digest for name, lane in rules.lanes.items()}
            before_and_after = (head.data.encode(), data)
            check_content(lifecycle, head.state, operation.action, names, before_and_after)
        if action is not None and action.releases:
            releases = permitted(
                rules,
                action,
                operation.action,
                operation.entity,
                operation.version,
                data,
                operation.body,
            )
            _check_corrected(releases, rows)
    envelope = Envelope(
        action=operation.action,
        actor=operation.actor,
        at=operation.at or context.recorded,
        body=body_of(operation.body, operation.body_type),
        entity=operation.entity,
        generation=tip.generation,
        history=tip.history,
        lifecycle=lifecycle.version,
        operation=operation.operation,
        outcome=Outcome(hash_of(data), state),
        predecessor=None if head is None else Predecessor(head.digest, head.history, head.revision),
        principal=operation.principal,
        recorded=context.recorded,
        releases=releases,
        revision=revision + 1,
        sequence=tip.sequence + 1,
        tenant=rules.tenant,
        v=1,
        version=version,
    )
    return Decision(seal(envelope, operation.body), data, lifecycle.owner)


def _judge_report(
    operation: Operation,
    head: EntityHead | None,
    rows: Mapping[str, Work],
    lifecycle: Lifecycle,
    context: Context,
) -> str:
    """The entity's state after what became of its release."""
    report = report_of(operation.body)
    commits = operation.action == COMMITTED_ACTION
    if head is None and (commits or report.release not in rows):
        raise NotFound(f"{operation.entity}: no decision of it is journalled")
    # Where the whole history was abandoned, its releases are still known.
    state = lifecycle.initial if head is None else head.state
    withdrawn = state in lifecycle.withdrawn
    row = check_report(operation.action, report, rows.get(report.release), withdrawn)
    if commits:
        if not lifecycle.knows(state):
            raise TransitionRefused(
                f"{operation.entity} is in state {state}, to which version "
                f"{lifecycle.version} of its lifecycle does not lead: take it on with an action",
                state=state,
            )
        context.commits(row)
    return step_of_release(lifecycle, state, operation.action)


def _check_corrected(releases: Sequence[Release], rows: Mapping[str, Work]) -> None:
    """A correction corrects a release of its own entity."""
    for release in releases:
        if release.corrects is None:
            continue
        corrected = rows.get(release.corrects)
        if corrected is None or corrected.effect != Effect.EXTERNAL:
            raise Invalid(
                f"{release.corrects} is no release of this entity that could be corrected",
                field="body.corrects",
            )


def beginning(history: str, generation: int, first: int = 1, digest: str = GENESIS) -> Place:
    """The place just before a history's first sequence."""
    return Place(history, generation, first - 1, digest)
