"""An endpoint that a test answers for, with whatever it likes."""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Endpoint(BaseHTTPRequestHandler):
    """Gives every request to `answer`, whatever its method. Logs nothing."""

    @abstractmethod
    def answer(self) -> None:
        """Answer one request."""

    def finish_answer(self, body: bytes) -> None:
        """End the headers, and send a body where the method has one, to a client that may be gone by then."""
        with suppress(ConnectionError):
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

    def _any(self) -> None:
        self.answer()

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _any  # noqa: N815

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        pass


@contextmanager
def listening(endpoint: type[Endpoint]) -> Iterator[int]:
    """Serve it at a free port of this host, which is returned."""
    with ThreadingHTTPServer(("127.0.0.1", 0), endpoint) as server:
        serving = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        serving.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            serving.join()
