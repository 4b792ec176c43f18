"""A read that fails says why, and no credential comes out with it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.support.backlogs import Backlog
from tests.support.servers import BUCKET

SECRETS = {
    "access_key_id": "AKIAEXAMPLEKEYID",
    "secret_access_key": "an-aws-secret",
    "session_token": "a-session-token",
}


@pytest.fixture
def strict_s3() -> Iterator[str]:
    """A server that answers every request as S3 answers a wrong secret: with all that was signed."""

    class Refuse(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            key = SECRETS["access_key_id"]
            body = (
                "<Error><Code>SignatureDoesNotMatch</Code><Message>The request signature we calculated does not match"
                f"</Message><AWSAccessKeyId>{key}</AWSAccessKeyId><StringToSign>{self.headers['authorization']} "
                f"{SECRETS['session_token']}</StringToSign></Error>"
            ).encode()
            self.send_response(403)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        do_HEAD = do_PUT = do_GET  # noqa: N815  the names are the server's

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Refuse)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def all_text(error: Any) -> str:
    """Everything that Spark tells of an error: what is printed, and what is not."""
    parts = [str(error), repr(error), str(getattr(error, "_stackTrace", ""))]
    cause = getattr(error, "_cause", None) or error.__cause__
    return "\n".join([*parts, all_text(cause) if cause is not None else ""])


@pytest.mark.parametrize("kind", ["batch", "stream"])
def test_a_read_with_a_wrong_secret_says_why_and_tells_no_credential(
    session: Any, strict_s3: str, tmp_path: Path, kind: str
) -> None:
    reach = {"endpoint": strict_s3, "allow_http": "true", "region": "us-east-1", "max_retries": "0", **SECRETS}
    place = Backlog(f"s3://{BUCKET}/events", reach)

    def read() -> None:
        if kind == "batch":
            place.frame(session).collect()
        else:
            writing = place.stream(session).writeStream.option("checkpointLocation", str(tmp_path / "checkpoint"))
            writing.format("noop").trigger(availableNow=True).start().awaitTermination()

    with pytest.raises(Exception, match="SignatureDoesNotMatch") as failed:
        read()

    assert [secret for secret in SECRETS.values() if secret in all_text(failed.value)] == []


def test_a_wrong_option_beside_credentials_tells_none(session: Any) -> None:
    place = Backlog(f"s3://{BUCKET}/events", {**SECRETS, "acess_key": "misspelt-secret"})

    with pytest.raises(Exception, match="InvalidInput") as failed:
        place.frame(session).collect()

    assert [text for text in (*SECRETS.values(), "misspelt-secret") if text in all_text(failed.value)] == []


def test_no_credential_is_in_a_reader_as_it_is_shown() -> None:
    place = Backlog("s3://bucket/events", SECRETS)

    shown = "".join(repr(one) + repr(vars(one)) for one in (place.reader(), place.stream_reader()))

    assert [secret for secret in SECRETS.values() if secret in shown] == []
