"""The mutants: one fault each in the code that a promise rests on."""

from __future__ import annotations

from collections.abc import Mapping

from tests.simulation.mutating import Mutant

MUTANTS: Mapping[str, Mutant] = {
    "answer-before-append": Mutant(
        "P1",
        "journal.writepath:decide",
        "            await journal_entries(record, entries, ready.look)\n",
        "            pass\n",
    ),
    "answer-though-the-journal-is-away": Mutant(
        "P1",
        "journal.handoff:journal_entries",
        "        raise JournalUnavailable(\n"
        '            f"the decision is committed but not yet in the journal: {error}"\n'
        "        ) from error\n",
        "        return\n",
        seed=10,
    ),
    "read-what-waits": Mutant(
        "P1",
        "journal.reading:read_heads",
        "        if newest > later.sequence:\n            raise Pending\n",
        "",
        seed=8,
        also=(
            (
                "journal.reading:_vouch",
                "    if later or not own or _is_other_data(own[0], head.data):\n",
                "    if False:\n",
            ),
        ),
    ),
    "skip-the-handoff": Mutant(
        "P1",
        "journal.handoff:hand_off",
        "        await journal_entries(record, entries, look)\n        look = await",
        "        look = await",
        seed=10,
    ),
    "operations-not-looked-up": Mutant(
        "P6",
        "journal.writepath:_view",
        "        rows = await log.operations([operation.operation for operation in operations])\n",
        "        rows = []\n",
        seed=3,
    ),
    "repeats-in-a-batch-not-seen": Mutant(
        "P6",
        "journal.acceptance:judge",
        "        known[operation.operation] = entry\n",
        "",
        seed=18,
    ),
    "reuse-not-compared": Mutant(
        "P6",
        "journal.acceptance:repeat",
        "    differing = [field for field, (now, then) in pairs.items() if now != then]\n"
        "    if differing:\n"
        "        raise OperationReused",
        "    differing = [field for field, (now, then) in pairs.items() if now != then]\n"
        "    if False:\n"
        "        raise OperationReused",
    ),
    "expected-revision-ignored": Mutant(
        "P6",
        "journal.acceptance:_decide",
        "    if expected is not None and expected != revision:\n",
        "    if False:\n",
    ),
    "closed-is-open": Mutant(
        "P9",
        "journal.writepath:check_stage",
        "    if not (control.authority.stage.decides or record.recovering):\n",
        "    if False:\n",
        seed=12,
        also=(
            (
                "journal.writepath:check_door",
                "    if not record.recovering:\n        record.stop.check()\n",
                "",
            ),
        ),
    ),
    "gate-passes-what-is-withdrawn": Mutant(
        "P5",
        "journal.gate:rule",
        "    if standing.state in lifecycle.withdrawn and",
        "    if False and",
        seed=2,
    ),
    "gate-passes-what-is-superseded": Mutant(
        "P5",
        "journal.gate:rule",
        "    elif wanted < standing.durable_through:\n",
        "    elif False:\n",
    ),
    "gate-passes-what-is-not-durable": Mutant(
        "P5",
        "journal.gate:rule",
        "    reasons = [*held]\n",
        "    import msgspec\n"
        "    reasons = [*held]\n"
        "    if standing is not None:\n"
        "        through = max(standing.revision, revision or 0)\n"
        "        standing = msgspec.structs.replace(\n"
        "            standing, complete=True, durable_through=through\n"
        "        )\n",
        seed=5,
    ),
    "lease-not-compared": Mutant(
        "P7",
        "journal.release:check_report",
        "    elif report.lease is not None and report.lease != row.lease:\n",
        "    elif False:\n",
        seed=11,
    ),
    "lease-does-not-rise": Mutant(
        "P7",
        "journal.permits:next_lease",
        "    return max(row.lease, generation << GENERATION_BITS) + 1\n",
        "    return (generation << GENERATION_BITS) + 1\n",
    ),
    "always-repeatable": Mutant(
        "P4",
        "journal.outcomes:repeatable",
        "    if not row.maybe:\n        return True\n    since",
        "    if True:\n        return True\n    since",
        seed=3,
    ),
    "a-call-is-forgotten": Mutant(
        "P4",
        "journal.outcomes:may_have_called",
        "    return row.started is not None or not row.step.startswith(PICKED_UP)\n",
        "    return False\n",
        seed=90,
    ),
    "not-found-is-enough": Mutant(
        "P4",
        "journal.outcomes:after_answer",
        "    if told is Told.VOID or (told is Told.NOT_FOUND and over and passed and kept):\n",
        "    if told in {Told.VOID, Told.NOT_FOUND, Told.UNKNOWN}:\n",
        seed=20,
    ),
    "table-put-back-unseen": Mutant(
        "P4",
        "journal.permits:claim",
        "        await _keep_derived(record, ready, picked)\n",
        "",
        seed=18,
    ),
    "committed-comes-back-ready": Mutant(
        "P4",
        "journal.folding:after_report",
        "                status=str(Status.RUNNING),\n"
        "                committed=row.committed or now,\n",
        "                status=str(Status.READY),\n"
        "                committed=row.committed or now,\n",
        seed=6,
    ),
    "local-only-kept": Mutant(
        "P7",
        "reconstruct.applying:undo",
        "                statements.append(tables.delete_decisions_above(base.common))\n",
        "                pass\n",
        seed=86,
    ),
    "history-goes-on": Mutant(
        "P7",
        "reconstruct.recovery:_start_history",
        "        history = record.clock.fresh()\n",
        "        history = control.authority.history\n",
    ),
    "generation-stays": Mutant(
        "P7",
        "reconstruct.beginning:begin",
        "known) + (0 if resumed else 1)\n",
        "known)\n",
    ),
    "durable-further-than-the-journal": Mutant(
        "P1",
        "journal.acceptance:receipt",
        "        durable_through=envelope.revision,\n",
        "        durable_through=envelope.revision + 1,\n",
        seed=2,
    ),
    "another-hash-than-the-data": Mutant(
        "P10",
        "journal.acceptance:_decide",
        "        outcome=Outcome(hash_of(data), state),\n",
        "        outcome=Outcome(hash_of(b'{}'), state),\n",
    ),
    "a-gap-is-durable": Mutant(
        "P5",
        "journal.sealed:_answer",
        "        durable_through=entity.chain.boundary.revision,\n",
        "        durable_through=entry.envelope.revision,\n",
        seed=6,
    ),
    "replay-forgets-what-it-replayed": Mutant(
        "P11",
        "reconstruct.replay:Replay.step",
        "    self.heads[row.entity] = head_after(decision)\n",
        "    self.heads.setdefault(row.entity, head_after(decision))\n",
        seed=2,
    ),
    "nothing-is-swept": Mutant(
        "P12",
        "journal.sweeping:_portion",
        "    with record.lock.held():\n",
        "    return []\n    with record.lock.held():\n",
        seed=7,
    ),
    "a-lost-answer-means-not-sent": Mutant(
        "P4",
        "api.replies:judge_sent",
        "        if heard.sent:\n",
        "        if False:\n",
    ),
    "confirmed-is-not-done": Mutant(
        "P4",
        "journal.folding:after_report",
        "Status.DONE, now, report.evidence)\n",
        "Status.READY, now, report.evidence)\n",
        seed=2,
    ),
    "cancelled-goes-out": Mutant(
        "P4",
        "journal.folding:_withdraw",
        "        if not withdrawn and not superseded:\n",
        "        if True:\n",
        also=(
            (
                "journal.release:check_report",
                "        if withdrawn or row.cancel_requested:\n",
                "        if False:\n",
            ),
        ),
    ),
    "replay-loses-a-decision": Mutant(
        "P2",
        "reconstruct.applying:_keep",
        "tables.write_decisions(decisions)",
        "tables.write_decisions(decisions[1:])",
        seed=2,
    ),
    "every-comparison-is-clean": Mutant(
        "P8",
        "journal.detection:compare",
        "    tip = tip_of(control.authority, seen.look.last)\n",
        "    return Finding(Verdict.CLEAN, 'mutant', {})\n",
        seed=6,
    ),
    "permits-before-the-journal": Mutant(
        "P3",
        "journal.permits:_commit",
        "    answers = await decide(record, ready, operations, Claim(statements, begun))\n",
        "    import journal.writepath as its\n"
        "    kept = its.journal_entries\n"
        "    async def nothing(*_): return None\n"
        "    its.journal_entries = nothing\n"
        "    try:\n"
        "        answers = await decide(record, ready, operations, Claim(statements, begun))\n"
        "    finally:\n"
        "        its.journal_entries = kept\n",
    ),
}
