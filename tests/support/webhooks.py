"""A webhook that alerts go to: what came, and whether its signature holds."""

import contextlib
import http.server
import json
import threading
from collections.abc import Iterator
from typing import Any

from standardwebhooks.webhooks import Webhook


class Hook:
    """Listens on a port of its own, in threads, and answers ``status``."""

    def __init__(self) -> None:
        self.came: list[tuple[dict[str, str], bytes]] = []
        self.status = 204
        self.held = threading.Event()
        self.held.set()
        hook = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                headers = {name.lower(): value for name, value in self.headers.items()}
                hook.came.append((headers, body))
                hook.held.wait()
                with contextlib.suppress(OSError):
                    self.send_response(hook.status)
                    self.send_header("Location", hook.url)
                    self.send_header("Content-Length", "0")
                    self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.01,))
        self.thread.start()
        self.url = f"http://127.0.0.1:{self.server.server_port}/alerts?key=a-secret"

    @property
    def alerts(self) -> list[dict[str, Any]]:
        return [json.loads(body) for _, body in self.came]

    @property
    def kinds(self) -> list[str]:
        return [alert["kind"] for alert in self.alerts]

    def verify(self, secret: str) -> None:
        """Raises where a signature does not hold."""
        for headers, body in self.came:
            Webhook(secret).verify(body, headers)

    def close(self) -> None:
        self.held.set()
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


@contextlib.contextmanager
def hooked() -> Iterator[Hook]:
    hook = Hook()
    try:
        yield hook
    finally:
        hook.close()
