"""A proxy in front of an S3 server that answers one request in a wrong way, or not at all.

It is a process of its own: delta-rs holds Python's lock while it waits for some answers.
"""

from __future__ import annotations

import http.client
import json
import re
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.support.servers import S3Server, serving

_NOT_PASSED_ON = {"connection", "keep-alive", "transfer-encoding", "content-length", "expect"}
_CONTROL = "/control-of-the-proxy"


class Wrong(StrEnum):
    """What happens to a request."""

    ERROR_500 = "500"
    ERROR_503 = "503"
    CUT_BEFORE = "cut before"  # the connection ends, and the server never sees the request
    CUT_AFTER = "cut after"  # the server does what it is asked, and the answer is lost


@dataclass(frozen=True)
class FaultyProxy:
    """A proxy that runs. It passes requests on, and counts them since it was armed."""

    server: S3Server
    in_front: S3Server
    """The server as its clients reach it through the proxy."""

    def arm(self, wrong: Wrong, number: int, times: int = 1) -> None:
        """Do wrong with the request of that number, counted from 0 from now on, and with the ones behind it."""
        self._ask({"wrong": wrong, "number": number, "times": times})

    def disarm(self) -> bool:
        """Pass all on; return whether it was that request's turn."""
        return bool(self._ask({})["was met"])

    def _ask(self, what: dict[str, object]) -> Any:
        connection = http.client.HTTPConnection(self.in_front.host, self.in_front.port, timeout=60)
        try:
            connection.request("POST", _CONTROL, json.dumps(what))
            return json.loads(connection.getresponse().read())
        finally:
            connection.close()


@contextmanager
def faulty_proxy(server: S3Server) -> Iterator[FaultyProxy]:
    """Run a proxy in front of a server."""
    command = [sys.executable, "-m", "tests.support.faulty_proxy", server.host, str(server.port)]
    with serving(command, re.compile(r"passing requests on at (\d+)")) as port:
        yield FaultyProxy(server, S3Server("127.0.0.1", port))


class _Proxy:
    """What the process does."""

    def __init__(self, server: S3Server) -> None:
        self._server = server
        self._lock = threading.Lock()
        self._wrong: Wrong | None = None
        self._numbers = range(0)
        self._count = 0

    def control(self, what: dict[str, Any]) -> dict[str, object]:
        with self._lock:
            was_met = self._wrong is not None and self._count > self._numbers.start
            self._wrong, self._count = (Wrong(what["wrong"]), 0) if what else (None, 0)
            self._numbers = range(what["number"], what["number"] + what["times"]) if what else range(0)
        return {"was met": was_met}

    def handle(self, handler: BaseHTTPRequestHandler) -> None:
        body = _body(handler)
        if handler.path == _CONTROL:
            self._answer(handler, 200, [], json.dumps(self.control(json.loads(body))).encode())
            return
        with self._lock:
            wrong = self._wrong if self._count in self._numbers else None
            self._count += 1
        if wrong is Wrong.CUT_BEFORE:
            _cut(handler)
            return
        if wrong in (Wrong.ERROR_500, Wrong.ERROR_503):
            self._answer(handler, int(wrong.value), [("Content-Type", "application/xml")], _error(wrong))
            return
        connection = http.client.HTTPConnection(self._server.host, self._server.port, timeout=60)
        try:
            headers = {name: value for name, value in handler.headers.items() if name.lower() not in _NOT_PASSED_ON}
            connection.request(handler.command, handler.path, body, headers | {"Content-Length": str(len(body))})
            answer = connection.getresponse()
            data = answer.read()
        finally:
            connection.close()
        if wrong is Wrong.CUT_AFTER:
            _cut(handler)
            return
        length = answer.getheader("Content-Length") if handler.command == "HEAD" else None
        self._answer(handler, answer.status, answer.getheaders(), data, length)

    def _answer(
        self,
        handler: BaseHTTPRequestHandler,
        status: int,
        headers: list[tuple[str, str]],
        data: bytes,
        length: str | None = None,
    ) -> None:
        handler.send_response_only(status)
        for name, value in headers:
            if name.lower() not in _NOT_PASSED_ON:
                handler.send_header(name, value)
        handler.send_header("Content-Length", length or str(len(data)))
        handler.end_headers()
        if handler.command != "HEAD":
            handler.wfile.write(data)


def _body(handler: BaseHTTPRequestHandler) -> bytes:
    if handler.headers.get("Transfer-Encoding", "").lower() != "chunked":
        return handler.rfile.read(int(handler.headers.get("Content-Length") or 0))
    parts = []
    while size := int(handler.rfile.readline().partition(b";")[0], 16):
        parts.append(handler.rfile.read(size))
        handler.rfile.readline()
    while handler.rfile.readline().strip():
        pass  # what comes behind the last part
    return b"".join(parts)


def _cut(handler: BaseHTTPRequestHandler) -> None:
    handler.close_connection = True
    handler.connection.shutdown(socket.SHUT_RDWR)


def _error(wrong: Wrong) -> bytes:
    code = "InternalError" if wrong is Wrong.ERROR_500 else "SlowDown"
    return f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>injected</Message></Error>".encode()


def _main(host: str, port: str) -> None:
    proxy = _Proxy(S3Server(host, int(port)))

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle_any(self) -> None:
            proxy.handle(self)

        do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = handle_any  # noqa: N815  names of `http.server`

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        print(f"passing requests on at {server.server_address[1]}", flush=True)
        server.serve_forever()


if __name__ == "__main__":
    _main(*sys.argv[1:])
