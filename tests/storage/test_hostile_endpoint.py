"""A server's error may be as long and as strange as it likes: the message is short, printable, and comes at once."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import CorruptData, StorageError
from penstock.storage import ObjectStore, get_at_most, open_store
from penstock.storage.redaction import redact
from tests.storage.http_endpoint import Endpoint, listening

SECRET = "hunter22-hunter22"
SIZE = 1 << 20
LONGEST_MESSAGE = 5_000

# Each is the beginning of something that a search looks for the end of.
BODIES = {
    "elements without an end": "<StringToSign>",
    "elements of many names without an end": "<StringToSign><CanonicalRequestA></StringToSignB>",
    "the beginning of an element": "<StringToSign",
    "users without a host": "http://user",
    "users of many hosts": "://a@",
    "a user of many letters": "a",
    "parameters": "sig=",
    "headers": "authorization: ",
    "headers without a value": "authorization    ",
    "spaces": " ",
    "line ends": "\n",
    "escape sequences": "\x1b[2J",
}


@contextmanager
def answering(status: int, body: bytes, headers: dict[str, str] | None = None) -> Iterator[ObjectStore]:
    """A store on a server that gives every request the same answer."""

    class Answering(Endpoint):
        def answer(self) -> None:
            self.send_response(status)
            for name, value in (headers or {"Content-Length": str(len(body))}).items():
                self.send_header(name, value)
            self.finish_answer(body)

    with listening(Answering) as port:
        yield open_store(
            "s3://bucket/prefix",
            endpoint=f"http://127.0.0.1:{port}",
            allow_http=True,
            region="us-east-1",
            access_key_id="key",
            secret_access_key=SECRET,
            max_retries=0,
        )


def messages_of(error: BaseException | None) -> list[str]:
    """What a traceback shows of an error, without what the engine adds to its own."""
    shown = []
    while error is not None:
        shown.append(str(error).partition("Debug source:")[0].strip())
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return shown


@pytest.mark.timeout(60)  # seconds; in quadratic time a mebibyte takes a quarter of an hour
@pytest.mark.parametrize("body", BODIES)
def test_an_error_of_a_mebibyte_becomes_a_short_printable_message(body: str, caplog: pytest.LogCaptureFixture) -> None:
    unit = BODIES[body]
    with (
        caplog.at_level(logging.DEBUG, "penstock"),
        answering(403, (unit * (SIZE // len(unit))).encode()) as store,
        pytest.raises(StorageError) as caught,
    ):
        store.get("object")
    for shown in (*messages_of(caught.value), *(record.getMessage() for record in caplog.records)):
        assert shown.isprintable()
        assert len(shown) < LONGEST_MESSAGE


@pytest.mark.timeout(60)
@pytest.mark.parametrize("body", BODIES)
def test_redacting_takes_no_longer_than_the_text_is_long(body: str) -> None:
    unit = BODIES[body]
    assert len(redact(unit * (10 * SIZE // len(unit)), [SECRET])) < 3 * LONGEST_MESSAGE


def test_an_ordinary_error_keeps_its_cause_for_who_looks_into_it() -> None:
    with answering(403, b"<Error><Code>AccessDenied</Code></Error>") as store, pytest.raises(StorageError) as caught:
        store.get("object")
    assert "AccessDenied" in str(caught.value)
    assert caught.value.__cause__ is not None


@settings(deadline=None)
@given(
    st.integers(7_900, 8_100), st.sampled_from(["", "x", "://", "sig=", "<StringToSign>", "authorization: ", SECRET])
)
def test_a_cut_never_lets_a_part_of_a_secret_through(before: int, opening: str) -> None:
    shown = redact("." * before + opening + SECRET + "@host " + "." * 1_000, [SECRET])
    assert SECRET[:4] not in shown


@given(st.integers(7_900, 8_100))
def test_a_cut_never_lets_a_part_of_what_only_looks_like_a_secret_through(before: int) -> None:
    for secret in ("http://secret:secret@host", "<StringToSign>secret secret</StringToSign>", "sig=secretsecret"):
        shown = redact("." * before + " " + secret + " " + "." * 1_000)
        assert "secret" not in shown


def test_elements_are_hidden_one_by_one_and_what_is_between_them_is_shown() -> None:
    text = "<AWSAccessKeyId>a</awsaccesskeyid> b <StringToSignBytes>c</StringToSignBytes> d <SignatureProvided>e"
    assert redact(text) == (
        "<AWSAccessKeyId>***</awsaccesskeyid> b <StringToSignBytes>***</StringToSignBytes> d <SignatureProvided>***"
    )


@pytest.mark.timeout(60)
def test_an_object_that_claims_a_tebibyte_is_refused_before_its_first_byte() -> None:
    headers = {
        "Content-Length": str(1 << 40),
        "ETag": '"tag"',
        "Last-Modified": "Tue, 17 Nov 2026 12:00:00 GMT",
    }
    with (
        answering(200, b"only this", headers) as store,
        pytest.raises(CorruptData, match=re.escape(f"has {1 << 40} bytes")),
    ):
        get_at_most(store, "object", 1_000)
