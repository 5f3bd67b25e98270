"""The books: what the journal permits and records, against what the other ends did."""

from __future__ import annotations

import json
from collections import Counter
from contextlib import closing
from typing import Any

from msgspec import Struct

from tests.soak.effects import PULLED, PUSHED, Town

_ENTRIES = (
    "SELECT position, operation, envelope, body FROM entries"
    " WHERE stream = 'decisions' AND position > ? ORDER BY position"
)


class Act(Struct, frozen=True):
    """A call that a receiver got, or a permit that the worker had in hand, and when."""

    release: str
    at: str


class Journalled:
    """The journal as far as it concerns releases, read on from where it was read to before."""

    def __init__(self, town: Town) -> None:
        self._town = town
        self._position = 0
        self.lanes: dict[str, str] = {}
        self.committed: dict[str, list[str]] = {}
        self.confirmed: dict[str, str] = {}
        self.reports: set[str] = set()

    def read(self) -> Journalled:
        with closing(self._town.look(self._town.journal)) as database:
            rows = database.execute(_ENTRIES, (self._position,)).fetchall()
        for position, operation, text, body in rows:
            self._position = position
            envelope = json.loads(text)
            for release in envelope["releases"]:
                self.lanes[release["id"]] = release["lane"]
            if not envelope["action"].startswith("release."):
                continue
            self.reports.add(operation)
            report = json.loads(body)
            if envelope["action"] == "release.committed":
                assert report["release"] not in self.confirmed, f"again: {report}"
                self.committed.setdefault(report["release"], []).append(envelope["recorded"])
            elif envelope["action"] == "release.confirmed":
                self.confirmed.setdefault(report["release"], envelope["recorded"])
        return self


class Books:
    """Compares, whenever it is asked to. What it is told to be so MUST hold at any moment."""

    def __init__(self, town: Town) -> None:
        self.town = town
        self.journal = Journalled(town)
        self.cancelled: set[str] = set()
        """Releases whose cancellation was answered with *cancelled*."""
        self.held: set[str] = set()
        """Releases that a reconciliation left to their owner."""

    # The other ends.

    def acts(self, lane: str) -> list[Act]:
        """Every attempt that arrived at the other end of a lane, in order."""
        if lane == PULLED:
            permits = self.town.puller.lines("permit")
            return [Act(line["release"], line["at"]) for line in permits]
        calls = self.town.receivers[lane].calls()
        return [Act(line["release"], line["at"].replace("Z", "+00:00")) for line in calls]

    def executed(self, lane: str) -> Counter[str]:
        """How often each release of a lane had its effect."""
        if lane == PULLED:
            return Counter(line["release"] for line in self.town.puller.lines("executed"))
        lines = self.town.receivers[lane].lines()
        return Counter(line["release"] for line in lines if line["executed"])

    # At any moment.

    def check_effects(self) -> None:
        """No effect twice, none uncommitted, none after its receipt, none that was cancelled (P4).

        The other ends are read before the journal: what is found there was there before.
        """
        acts = {lane: self.acts(lane) for lane in (*PUSHED, PULLED)}
        executed = {lane: self.executed(lane) for lane in (*PUSHED, PULLED)}
        self.journal.read()
        for lane, counts in executed.items():
            twice = {release: times for release, times in counts.items() if times > 1}
            assert not twice, f"lane {lane}: executed more than once: {twice}"
            assert counts.keys() <= self.journal.lanes.keys(), f"lane {lane}: nobody permitted it"
            wrong = {release for release in counts if self.journal.lanes[release] != lane}
            assert not wrong, f"lane {lane}: released to another lane: {wrong}"
            assert not counts.keys() & self.cancelled, f"lane {lane}: executed though cancelled"
        for lane, found in acts.items():
            self._check_commitments(lane, found)
        for line in self.town.puller.lines("executed"):
            assert line["journalled"], f"the worker did not find its commitment: {line}"

    def _check_commitments(self, lane: str, acts: list[Act]) -> None:
        """The n-th attempt at a release comes after the n-th commitment to it (P3)."""
        seen: Counter[str] = Counter()
        for act in acts:
            if lane != PULLED:
                seen[act.release] += 1
            wanted = max(seen[act.release], 1)
            committed = [
                recorded
                for recorded in self.journal.committed.get(act.release, ())
                if recorded.replace("Z", "+00:00") <= act.at
            ]
            assert len(committed) >= wanted, (
                f"lane {lane}: attempt {wanted} at {act.release}, at {act.at}, has no commitment: "
                f"{self.journal.committed.get(act.release)}"
            )
            confirmed = self.journal.confirmed.get(act.release)
            if lane in {"queryable", "opaque"} and confirmed is not None:
                assert act.at <= confirmed.replace("Z", "+00:00"), (
                    f"lane {lane}: {act.release} was called at {act.at}, confirmed at {confirmed}"
                )

    # When everything is quiet.

    def unquiet(self) -> dict[str, Any]:
        """What still goes on; nothing when everything is quiet."""
        if self.town.puller.busy:
            return {"puller": "holds a permit"}
        return {
            row["id"]: (row["lane"], row["status"], row["step"], row["last_error"])
            for row in self.town.rows().values()
            if row["status"] in {"ready", "running", "retry", "pending"}
            or (row["status"] == "unknown" and row["due"] is not None)
        }

    def check_accounts(self) -> Counter[str]:
        """Everything permitted has ended, or waits for its owner (P12); both ends agree."""
        self.check_effects()
        rows = self.town.rows()
        assert rows.keys() == self.journal.lanes.keys(), "one is gone, or from nowhere"
        executed = {release for lane in (*PUSHED, PULLED) for release in self.executed(lane)}
        for row in rows.values():
            self._check_end(row, happened=row["id"] in executed)
        return Counter(f"{row['lane']} {row['status']}" for row in rows.values())

    def _check_end(self, row: dict[str, Any], *, happened: bool) -> None:
        told = {name: row[name] for name in ("id", "lane", "status", "step", "last_error")}
        match row["status"]:
            case "done":
                assert happened, f"confirmed, and nobody did it: {told}"
            case "cancelled" | "refused":
                assert not happened, f"it happened all the same: {told}"
            case "unknown":
                assert row["owner"] == "ines", told
                waits = row["lane"] in {"opaque", PULLED} or row["id"] in self.held
                assert waits or row["cancel_requested"], told
            case other:
                raise AssertionError(f"{other} is no end: {told}")
        if row["lane"] == "idempotent" and not (row["cancel_requested"] or row["id"] in self.held):
            assert row["status"] in {"done", "cancelled"}, told
