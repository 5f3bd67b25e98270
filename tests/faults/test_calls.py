"""P1, P4, P11: every file call of what writes fails in turn, or ends its process."""

from __future__ import annotations

import json
import re
import threading
import traceback
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from journal.errors import UnrewindError
from tests.faults.calls import EIO, KILL, WRITING, Bench, Fault, Injected, faults_of
from tests.faults.forking import ACTS, Forker
from tests.faults.scenes import Scene
from tests.faults.scratch import scratch
from tests.faults.strace import AGAIN, SHARES, require_strace
from tests.support import proof

_RARER = {"push": 5}
"""A dispatcher takes long to start and to end; a plain run tries fewer of its calls."""
_SHOWN = 20
_CAUSE = re.compile(
    r"I/O error|input/output error|\[Errno|full|malformed|pages of several moments"
    r"|locking protocol|is locked|readonly|unable to open",
    re.IGNORECASE,
)


class Courier(ThreadingHTTPServer):
    """A receiver that does whatever it is asked, as often as it is asked."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Answers)
        self.calls: Counter[str] = Counter()
        threading.Thread(target=self.serve_forever, daemon=True).start()


class _Answers(BaseHTTPRequestHandler):
    server: Courier

    def do_POST(self) -> None:
        content = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.server.calls[content["release"]] += 1
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def courier() -> Iterator[Courier]:
    with Courier() as made:
        yield made
        made.shutdown()


@pytest.fixture(scope="module")
def forker() -> Iterator[Forker]:
    require_strace()
    made = Forker()
    yield made
    made.close()


@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("act", [*ACTS])
def test_p1_each_file_call_fails_in_turn(
    forker: Forker, courier: Courier, act: str, share: int
) -> None:
    with scratch() as root:
        scene = Scene(root / "scene", act, f"http://127.0.0.1:{courier.server_port}/")
        bench = Bench(forker, root / "here")
        scene.copy(bench.folder)
        counted = bench.calls(act)
        met = Counter[str]()
        wrong: list[str] = []
        for fault in faults_of(counted)[:: share if share == 1 else share * _RARER.get(act, 1)]:
            scene.copy(bench.folder)
            courier.calls.clear()
            injected = bench.inject(act, fault)
            try:
                _said(injected, fault)
                closed = scene.check(bench.folder, injected, courier.calls.__getitem__)
                # What cannot be read may be damaged; unreadable control is closed (P9).
                assert not closed or (fault.what == EIO and fault.call not in WRITING)
                met["closed"] += closed
            except (AssertionError, UnrewindError) as error:
                line = traceback.extract_tb(error.__traceback__)[-1].line
                wrong.append(f"{fault} at {injected.at}\n{injected.ended}\n{error!r}: {line}")
            met["scope"] += 1
            met["reached"] += injected.at is not None
            met["answered"] += injected.ended.code == 0
    assert not wrong, "\n\n".join([f"{len(wrong)} of {met['scope']} faults", *wrong[:_SHOWN]])
    proof.record(f"faults-{act}", AGAIN, calls=sum(counted.values()), lost=0, doubled=0, **met)


def _said(injected: Injected, fault: Fault) -> None:
    """It answered, or ended with one line that names the cause."""
    ended = injected.ended
    assert "Traceback" not in ended.err
    if ended.code is None:
        assert fault.what == KILL
        return
    assert ended.code in {0, 3}
    lines = [line for line in ended.err.splitlines() if line.startswith("unrewind: ")]
    assert len(lines) == (ended.code == 3)
    assert not lines or _CAUSE.search(lines[0])
