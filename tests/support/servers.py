"""Real protocol servers for tests: S3 (moto) and Azure Blob Storage (Azurite), on 127.0.0.1 and a free port.

There is none for GCS: `obstore` speaks GCS's XML protocol, and the emulator that there is (fake-gcs-server) answers a
plain PUT of that protocol with "invalid uploadType".
"""

from __future__ import annotations

import base64
import collections
import hashlib
import hmac
import http.client
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import format_datetime
from typing import IO, Any

import pytest

from tests.support.repository import ROOT

CACHE = ROOT / ".cache"
AZURITE = "azurite@3.37.0"
# The account that every Azurite has. It is printed in its documentation, and opens nothing else.
AZURE_ACCOUNT = "devstoreaccount1"
AZURE_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="

BUCKET = "tests"

_START_WITHIN = 60.0
_STOP_WITHIN = 20.0

# Runs a command for as long as the other end of its standard input is open. However a test process ends,
# be it by SIGKILL, its end of the pipe closes, and the command is killed.
_GUARD = """
import subprocess, sys, threading
child = subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL)
threading.Thread(target=lambda: (sys.stdin.read(), child.kill()), daemon=True).start()
sys.exit(child.wait())
"""


@dataclass(frozen=True)
class S3Server:
    """A server that speaks S3. Every test uses a prefix, or a bucket, of its own."""

    host: str
    port: int

    @property
    def endpoint(self) -> str:
        return f"http://{self.host}:{self.port}"

    @property
    def options(self) -> dict[str, object]:
        """What `open_store` needs to reach it."""
        return {
            "endpoint": self.endpoint,
            "allow_http": True,
            "region": "us-east-1",
            "access_key_id": "test-key-id",
            "secret_access_key": "test-secret-key",
        }

    def create_bucket(self, name: str) -> None:
        _ask(self.host, self.port, "PUT", f"/{name}", {})

    def delete_bucket(self, name: str) -> None:
        _ask(self.host, self.port, "DELETE", f"/{name}", {})


@dataclass(frozen=True)
class AzureServer:
    """A server that speaks Azure Blob Storage."""

    host: str
    port: int

    @property
    def endpoint(self) -> str:
        return f"http://{self.host}:{self.port}/{AZURE_ACCOUNT}"

    @property
    def options(self) -> dict[str, object]:
        """What `open_store` needs to reach it."""
        return {
            "endpoint": self.endpoint,
            "allow_http": True,
            "account_name": AZURE_ACCOUNT,
            "account_key": AZURE_KEY,
        }

    def create_container(self, name: str) -> None:
        headers = {"x-ms-date": format_datetime(datetime.now(UTC), usegmt=True), "x-ms-version": "2021-12-02"}
        # The empty lines stand for headers that are not sent. An emulator's account is in the path, hence twice.
        signed = "PUT" + "\n" * 12 + "".join(f"{name}:{value}\n" for name, value in sorted(headers.items()))
        signed += f"/{AZURE_ACCOUNT}/{AZURE_ACCOUNT}/{name}\nrestype:container"
        digest = hmac.digest(base64.b64decode(AZURE_KEY), signed.encode(), hashlib.sha256)
        headers["Authorization"] = f"SharedKey {AZURE_ACCOUNT}:{base64.b64encode(digest).decode()}"
        _ask(self.host, self.port, "PUT", f"/{AZURE_ACCOUNT}/{name}?restype=container", headers)


@contextmanager
def s3_server() -> Iterator[S3Server]:
    """Run moto's server, with atomic requests."""
    with serving(
        [sys.executable, "-m", "tests.support.servers"], re.compile(r"Running on http://127\.0\.0\.1:(\d+)")
    ) as port:
        yield S3Server("127.0.0.1", port)


@contextmanager
def azure_server() -> Iterator[AzureServer]:
    """Run Azurite's blob service, in memory. Skips where it is not installed."""
    command = [
        _installed_azurite(),
        *("--blobHost", "127.0.0.1", "--blobPort", "0"),
        *("--inMemoryPersistence", "--skipApiVersionCheck", "--silent", "--disableTelemetry"),
    ]
    with serving(command, re.compile(r"listens on http://127\.0\.0\.1:(\d+)")) as port:
        yield AzureServer("127.0.0.1", port)


@contextmanager
def serving(command: list[str], announcement: re.Pattern[str]) -> Iterator[int]:
    """Run a server, and hand out the port that it announces."""
    with _guarded(command, subprocess.PIPE) as process:
        assert process.stdout is not None
        output = process.stdout
        last_lines: collections.deque[str] = collections.deque(maxlen=40)
        port: list[int] = []
        decided = threading.Event()

        def listen() -> None:
            # Until the end of its output: a server whose pipe is full stops serving.
            for line in output:
                last_lines.append(line)
                found = announcement.search(line)
                if found and not port:
                    port.append(int(found[1]))
                    decided.set()
            decided.set()

        listener = threading.Thread(target=listen, name="server-output")
        listener.start()
        try:
            if not decided.wait(_START_WITHIN) or not port:
                raise RuntimeError(f"{command[0]} did not start within {_START_WITHIN} s:\n{''.join(last_lines)}")
            yield port[0]
        finally:
            _stop(process)
            listener.join(_STOP_WITHIN)


@contextmanager
def _guarded(command: list[str], output: int | IO[str]) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", _GUARD, *command],
        stdin=subprocess.PIPE,
        stdout=output,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        cwd=ROOT,
    )
    with process:
        try:
            yield process
        finally:
            _stop(process)


def _stop(process: subprocess.Popen[str]) -> None:
    if process.stdin is not None and not process.stdin.closed:
        process.stdin.close()
    try:
        process.wait(_STOP_WITHIN)
    except subprocess.TimeoutExpired:
        process.kill()
        raise


def _ask(host: str, port: int, method: str, path: str, headers: Mapping[str, str]) -> None:
    connection = http.client.HTTPConnection(host, port, timeout=_START_WITHIN)
    try:
        connection.request(method, path, headers={"Content-Length": "0", **headers})
        answer = connection.getresponse()
        body = answer.read()
    finally:
        connection.close()
    if answer.status >= 300:
        raise RuntimeError(f"{method} {path} was answered with {answer.status}: {body[:500]!r}")


def _installed_azurite() -> str:
    """Azurite's program, on the path or in the cache. Tests install nothing over the network."""
    program = CACHE / AZURITE / "node_modules" / ".bin" / "azurite-blob"
    found = shutil.which("azurite-blob") or (str(program) if program.exists() and shutil.which("node") else None)
    if found is None:
        pytest.skip(f"Azurite is not installed: npm install --global {AZURITE}, or run `make azurite`")
    return found


def _serve_s3() -> None:
    """Run moto in this process, one request at a time.

    As it is, moto checks a condition and writes in two steps, with other threads in between (two writers can both win),
    and answers 500 when its threads meet. S3 does neither.
    """
    import moto.server
    from moto.s3.responses import S3Response

    alone = threading.RLock()

    def one_at_a_time(respond: Callable[..., Any]) -> Callable[..., Any]:
        def respond_alone(self: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
            request.get_data()  # before the lock: a slow sender holds up no other request
            with alone:
                return respond(self, request, *args, **kwargs)

        return respond_alone

    for name in ("key_response", "bucket_response"):
        setattr(S3Response, name, one_at_a_time(getattr(S3Response, name)))
    moto.server.main(["-H", "127.0.0.1", "-p", "0"])


if __name__ == "__main__":
    _serve_s3()
