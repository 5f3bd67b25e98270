"""Write `entries.json`, the test vectors of the entry format; the same file on every run.

python -m tests.vectors.generate            # write the file
python -m tests.vectors.generate --check    # exit 1 when the file is not what this would write
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tests.vectors.invalid import invalid_items
from tests.vectors.valid import valid_items

TARGET = Path(__file__).with_name("entries.json")
DESCRIPTION = (
    "Test vectors of the unrewind entry format, version 1. Changing one is a format change. "
    "README.md beside this file says what each member is. All data is fictional."
)


def document() -> bytes:
    """Return the bytes of the whole file."""
    valid, invalid = list(valid_items()), list(invalid_items())
    for items in (valid, invalid):
        names = [item["name"] for item in items]
        if len(set(names)) != len(names):
            raise ValueError("a name is used twice")
    content = {"format": 1, "description": DESCRIPTION, "valid": valid, "invalid": invalid}
    # ASCII, so that no editor or transfer can normalise the characters that are the point.
    return (json.dumps(content, ensure_ascii=True, indent=1) + "\n").encode("ascii")


def main(arguments: list[str]) -> int:
    """Write the file, or compare it; return the exit status."""
    made = document()
    if arguments == ["--check"]:
        return 0 if TARGET.read_bytes() == made else 1
    if arguments:
        sys.stderr.write("usage: python tests/vectors/generate.py [--check]\n")
        return 2
    TARGET.write_bytes(made)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
