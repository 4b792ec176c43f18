"""A catalog behind Iceberg's REST protocol, as far as a table here needs it: HTTP over a catalog in SQLite.

No server of that protocol is small enough to be installed for tests. This one has none of a server's own logic: it
hands requests to `SqlCatalog`, and loses the answers that a test wants lost.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import (
    CommitFailedException,
    NamespaceAlreadyExistsError,
    NoSuchNamespaceError,
    NoSuchTableError,
    TableAlreadyExistsError,
)
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import CommitTableRequest, Table

_STATUS = {
    NoSuchTableError: 404,
    NoSuchNamespaceError: 404,
    TableAlreadyExistsError: 409,
    NamespaceAlreadyExistsError: 409,
    CommitFailedException: 409,
}


class RestServer:
    """A running server. `faults` says what happens to the next commits: each is used up by one."""

    def __init__(self, warehouse: Path) -> None:
        self.catalog = SqlCatalog("lake", uri=f"sqlite:///{warehouse}/catalog.db", warehouse=str(warehouse))
        self.faults: list[str] = []
        self.commits = 0
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.uri = f"http://127.0.0.1:{self._http.server_address[1]}"

    @contextmanager
    def running(self) -> Iterator[RestServer]:
        thread = threading.Thread(target=self._http.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield self
        finally:
            self._http.shutdown()
            thread.join()
            self._http.server_close()
            self.catalog.close()

    def answer(self, method: str, path: list[str], body: bytes) -> dict[str, Any] | None:
        """What the catalog answers. Raises what it raises."""
        match method, path:
            case "GET", ["v1", "config"]:
                return {"defaults": {}, "overrides": {}}
            case "POST", ["v1", "namespaces"]:
                self.catalog.create_namespace(tuple(json.loads(body)["namespace"]))
                return {"namespace": json.loads(body)["namespace"]}
            case "GET" | "HEAD", ["v1", "namespaces", namespace]:
                return {"namespace": namespace, "properties": dict(self.catalog.load_namespace_properties(namespace))}
            case "POST", ["v1", "namespaces", namespace, "tables"]:
                asked = json.loads(body)
                return _described(
                    self.catalog.create_table(
                        (*namespace.split("."), asked["name"]),
                        Schema.model_validate(asked["schema"]),
                        partition_spec=PartitionSpec.model_validate(asked["partition-spec"]),
                        properties=asked["properties"],
                    )
                )
            case "GET", ["v1", "namespaces", namespace, "tables", name]:
                return _described(self.catalog.load_table((*namespace.split("."), name)))
            case "POST", ["v1", "namespaces", namespace, "tables", name]:
                table = self.catalog.load_table((*namespace.split("."), name))
                request = CommitTableRequest.model_validate_json(body)
                self.commits += 1
                done = self.catalog.commit_table(table, request.requirements, request.updates)
                return json.loads(done.model_dump_json())  # type: ignore[no-any-return]
            case _:
                raise NotImplementedError(f"{method} {path}")

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                path = [unquote(part).replace("\x1f", ".") for part in self.path.partition("?")[0].split("/") if part]
                is_commit = self.command == "POST" and len(path) == 5
                fault = server.faults.pop(0) if is_commit and server.faults else ""
                if fault == "refused":
                    return self._send(503, _error(503, "try later"))
                try:
                    status, answer = 200, server.answer(self.command, path, body)
                except tuple(_STATUS) as error:
                    status = _STATUS[type(error)]
                    answer = _error(status, str(error))
                if fault == "dropped":
                    self.close_connection = True
                    return None
                if fault in ("500", "409"):
                    status, answer = int(fault), _error(int(fault), "after the commit")
                return self._send(status, answer)

            do_POST = do_HEAD = do_GET  # noqa: N815

            def _send(self, status: int, answer: Any) -> None:
                data = b"" if self.command == "HEAD" else json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                self.send_header("Content-Type", "application/json")
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_words: Any) -> None:
                pass

        return Handler


def _described(table: Table) -> dict[str, Any]:
    return {
        "metadata-location": table.metadata_location,
        "metadata": json.loads(table.metadata.model_dump_json()),
        "config": {},
    }


def _error(status: int, message: str) -> dict[str, Any]:
    return {"error": {"message": message, "type": "Error", "code": status}}
