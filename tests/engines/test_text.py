"""What one caller sends must not close the tenant for everybody: text that no database keeps."""

from __future__ import annotations

from pathlib import Path

import pytest

import journal
from journal import Operation
from journal.errors import Invalid, UnrewindError

pytestmark = pytest.mark.engines

NUL = "v\x001"


async def test_p6_text_that_cannot_be_kept_is_refused_alone(
    store_url: str, journal_url: str, tmp_path: Path
) -> None:
    settings = journal.Settings(data=str(tmp_path), store=store_url, journal=journal_url)
    async with journal.open(settings) as opened:
        for entity in ("document/1", "document/2"):
            await opened.accept(Operation(f"submit-{entity}", entity, "submit"))
        answers = await opened.accept_many(
            [
                Operation("one", "document/1", "approve", version=NUL),
                Operation("two", "document/2", "approve", version="v1"),
                # Recipients come from the body, which may hold any character.
                Operation(
                    "three",
                    "document/2",
                    "release",
                    version="v1",
                    body=b'{"recipient": "a\\u0000b"}',
                    body_type="application/json",
                ),
            ]
        )
        assert isinstance(answers[0], Invalid)
        assert not isinstance(answers[1], UnrewindError)
        assert isinstance(answers[2], Invalid), answers[2]
        status = await opened.status()
        assert (status.stage, status.verdict) == ("open", "clean")
