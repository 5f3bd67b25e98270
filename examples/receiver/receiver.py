"""A receiver to test against, in a process of its own.

    python examples/receiver/receiver.py --port 0 --record calls.jsonl

It plays the service at the far end of a lane, keeps the contract that it is told to keep, records
every call, and misbehaves on command. README.md tells how; docs/receivers.md is the protocol.
"""

from __future__ import annotations

import sys
from pathlib import Path

if __name__ == "__main__":
    # A script finds what is beside it; the other files are imported from the root, as elsewhere.
    sys.path[0] = str(Path(__file__).resolve().parents[2])
    from examples.receiver.program import main

    sys.exit(main())
