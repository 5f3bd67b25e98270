"""The story: decide, rewind the store, notice, recover, and compare every row."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import journal
from examples.embedded.app import Rows, intention, read_tables, settings_for, show
from journal import Acceptance, Journal
from journal.errors import NotFound, Recovering, Refused, TransitionRefused
from reconstruct import recovery
from reconstruct.snapshots import restore, snapshot


async def tell(data: Path) -> int:
    """Tell it over a new tenant in ``data``; 0 when nothing was lost and no row differs."""
    settings = settings_for(data)
    if settings.store_file.exists() or settings.journal_file.exists():
        raise Refused(f"{data} holds a tenant already; the story needs an empty directory")
    backup = data / "snapshot"
    acknowledged, before, history = await _decide(settings, backup)
    _rewind(settings, backup, history)
    await _notice_and_recover(settings)
    return await _compare(settings, acknowledged, before)


async def _decide(settings: journal.Settings, backup: Path) -> tuple[list[Acceptance], Rows, str]:
    """Every acknowledged decision, the tables after the last one, and the history in force."""
    async with journal.open(settings) as tenant:
        _chapter("Three documents are submitted, two of them are approved")
        acknowledged = await _accept(
            tenant,
            intention("submit", "offer-1", actor="ada", folder="sales", title="Offer"),
            intention("submit", "offer-2", actor="ada", folder="archive", title="Offer"),
            intention("submit", "invoice-1", actor="ben", folder="sales", title="Invoice"),
        )
        acknowledged += await _accept(
            tenant,
            intention("approve", "offer-1", actor="eve"),
            intention("approve", "invoice-1", actor="eve"),
        )
        show(read_tables(settings))

        _chapter("A fourth has a title that its folder has: neither row nor decision")
        await _refused(tenant, settings)

        _chapter("A snapshot is taken, and deciding goes on")
        taken = await tenant.read(snapshot, backup)
        print(f"  the snapshot stands at sequence {taken.place.sequence}")
        acknowledged += await _accept(
            tenant,
            intention("release", "offer-1", actor="eve", version="v1"),
            intention("revoke", "invoice-1", actor="eve"),
            intention("submit", "memo-1", actor="ada", folder="sales", title="Memo"),
        )
        acknowledged += await _accept(tenant, intention("cancel", "offer-2", actor="ada"))
        before = read_tables(settings)
        show(before)
        return acknowledged, before, (await tenant.status()).history or ""


async def _refused(tenant: Journal, settings: journal.Settings) -> None:
    rows = read_tables(settings)
    copy = intention("submit", "offer-3", actor="ben", folder="sales", title="Offer")
    try:
        await tenant.accept(copy)
    except TransitionRefused as refusal:
        print(f"  {refusal.detail}")
    try:
        await tenant.operation(copy.operation)
    except NotFound:
        print(f"  no decision; the tables are {_same(rows, read_tables(settings))}")


def _rewind(settings: journal.Settings, backup: Path, history: str) -> None:
    _chapter("Somebody restores the snapshot: four decisions are gone from the store")
    restore(settings, backup, settings.tenant, history)
    show(read_tables(settings))


async def _notice_and_recover(settings: journal.Settings) -> None:
    async with journal.open(settings) as tenant:
        _chapter("It is noticed at the next start: nothing is decided on rewound rows")
        late = intention("approve", "offer-2", actor="eve")
        try:
            await tenant.accept(late)
        except Recovering as closed:
            print(f"  {closed.detail}")

        # From a shell: unrewind recover begin, plan, apply and reopen, each with
        # --config examples/embedded/unrewind.toml and PYTHONPATH=. for the projection.
        _chapter("Recovery: begin, plan, apply, reopen")
        recovery.stop(settings, "the store was restored")
        begun = await tenant.write(recovery.begin, "the store was restored")
        print(f"  begun: {begun.verdict}, generation {begun.generation}")
        plan = await tenant.write(recovery.plan)
        print(f"  planned: {plan.missing} decisions to replay: {_counts(plan.actions)}")
        applied = await tenant.write(recovery.apply, plan.plan)
        print(f"  applied: {applied.replayed} replayed, {len(applied.incomplete)} incomplete")
        reopened = await tenant.write(recovery.reopen)
        print(f"  reopened: the stage is {reopened.stage}")


async def _compare(
    settings: journal.Settings, acknowledged: Sequence[Acceptance], before: Rows
) -> int:
    _chapter("Every acknowledged decision is asked for, every row compared")
    after = read_tables(settings)
    show(after)
    lost = 0
    async with journal.open(settings) as tenant:
        for receipt in acknowledged:
            try:
                lost += (await tenant.operation(receipt.operation)).digest != receipt.digest
            except NotFound:
                lost += 1
    differing = sum(len(set(before[name]) ^ set(after[name])) for name in before)
    print(f"\n{lost} decisions lost, {differing} rows differ")
    return 1 if lost or differing else 0


async def _accept(tenant: Journal, *operations: journal.Operation) -> list[Acceptance]:
    """Accept operations in one batch; raises the first refusal."""
    accepted: list[Acceptance] = []
    for answer in await tenant.accept_many(operations):
        if not isinstance(answer, Acceptance):
            raise answer
        accepted.append(answer)
    return accepted


def _chapter(title: str) -> None:
    print(f"\n{title}")


def _same(before: Rows, after: Rows) -> str:
    return "unchanged" if before == after else "changed"


def _counts(actions: dict[str, int]) -> str:
    return ", ".join(f"{number} {action}" for action, number in actions.items())
