"""How a dead letter is stored: as an object of JSON in files and queues, and as an event of a buffer."""

from __future__ import annotations

import base64
import os
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, TypeAlias

import msgspec

from penstock.engine.dead_letters import DeadLetter
from penstock.engine.letters.letter import StoredLetter
from penstock.errors import CorruptData, InvalidInput
from penstock.records import Record

HEADER = "penstock-dead-letter"
"""The header of an event of a buffer that has what an event has no field for. Only the last of this name counts."""

_VERSION = 1
_NOT_OURS = (msgspec.MsgspecError, ValueError, OverflowError, RecursionError)
_ID_BYTES = 10
_LINE_BREAKS = {char.encode(): f"\\u{ord(char):04x}".encode() for char in "\x85\u2028\u2029"}
"""Line breaks of Unicode that JSON lets stand in a text: `str.splitlines`, and other tools, cut a line at them."""


class Base64(msgspec.Struct, frozen=True):
    """Bytes that are no UTF-8."""

    base64: str


Text: TypeAlias = str | Base64


class _About(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a letter beside its event."""

    letter: int
    id: str
    at: str
    stage: str
    reason: str
    origin: str | None = None
    sequence: int | None = None
    index: int | None = None


class _Line(_About, frozen=True, kw_only=True):
    """All of a letter."""

    timestamp_ms: int | None = None
    key: Text | None = None
    headers: tuple[tuple[str, Text], ...] | None = None
    payload: Text


class _Header(_About, frozen=True, kw_only=True):
    """All of a letter that its event has no field for."""

    has_headers: bool
    """Whether its event had headers: none are not the same as an empty list of them."""


_encoder = msgspec.json.Encoder()
_lines = msgspec.json.Decoder(_Line)
_headers = msgspec.json.Decoder(_Header)


def stored(letters: Sequence[DeadLetter], clock: Callable[[], float]) -> Iterator[StoredLetter]:
    """Dead letters of the engine as they are stored: with the time, and ids of their own.

    Raises `InvalidInput` for what is no list of them.
    """
    given: object = letters
    if not isinstance(given, Sequence) or not all(isinstance(letter, DeadLetter) for letter in given):
        raise InvalidInput(f"a route stores a list of DeadLetter, not {letters!r:.100}")
    at = datetime.fromtimestamp(clock(), UTC)
    ids = os.urandom(_ID_BYTES * len(letters)).hex()
    for number, letter in enumerate(letters):
        identity = letter.identity
        yield StoredLetter(
            payload=letter.payload,
            reason=letter.reason,
            stage=letter.stage,
            key=letter.key,
            headers=None if letter.headers is None else tuple(letter.headers),
            timestamp_ms=letter.timestamp_ms,
            sequence=None if identity is None else identity.sequence,
            index=None if identity is None else identity.index,
            at=at.astimezone(UTC),
            id=ids[2 * _ID_BYTES * number : 2 * _ID_BYTES * (number + 1)],
            origin=None if identity is None else identity.origin,
        )


def line_of(letter: StoredLetter) -> bytes:
    """A letter as an object of JSON, without a line break of any kind in it."""
    headers = None if letter.headers is None else tuple((name, _text(value)) for name, value in letter.headers)
    line = _encoder.encode(
        _Line(
            **_about(letter),
            timestamp_ms=letter.timestamp_ms,
            key=None if letter.key is None else _text(letter.key),
            headers=headers,
            payload=_text(letter.payload or b""),
        )
    )
    for char, escaped in _LINE_BREAKS.items():
        line = line.replace(char, escaped)
    return line


def letter_of_line(line: bytes) -> StoredLetter:
    """The letter of an object of JSON. Raises `CorruptData` for anything else."""
    try:
        found = _lines.decode(line)
        headers = None if found.headers is None else tuple((name, _bytes(value)) for name, value in found.headers)
        key = None if found.key is None else _bytes(found.key)
        return _letter(found, Record(_bytes(found.payload), key, headers, found.timestamp_ms))
    except _NOT_OURS as error:
        raise CorruptData(f"it is no dead letter: {error}") from error


def record_of(letter: StoredLetter) -> Record:
    """A letter as an event of a buffer."""
    about = _encoder.encode(_Header(**_about(letter), has_headers=letter.headers is not None))
    headers = (*(letter.headers or ()), (HEADER, about))
    return Record(letter.payload or b"", letter.key, headers, letter.timestamp_ms)


def letter_of_record(record: Record) -> StoredLetter:
    """The letter of an event of a buffer. Raises `CorruptData` for any other event."""
    headers = tuple(record.headers or ())
    if not headers or headers[-1][0] != HEADER:
        raise CorruptData(f"it is no dead letter: its last header is not {HEADER!r}")
    try:
        found = _headers.decode(headers[-1][1])
        own = headers[:-1] if found.has_headers else None
        return _letter(found, Record(record.value, record.key, own, record.timestamp_ms))
    except _NOT_OURS as error:
        raise CorruptData(f"it is no dead letter: its header {HEADER!r}: {error}") from error


def _about(letter: StoredLetter) -> dict[str, Any]:
    at = datetime.now(UTC) if letter.at is None else letter.at
    return {
        "letter": _VERSION,
        "id": letter.id,
        "at": at.astimezone(UTC).isoformat(),
        "stage": letter.stage,
        "reason": letter.reason,
        "origin": letter.origin,
        "sequence": letter.sequence,
        "index": letter.index,
    }


def _letter(about: _About, event: Record) -> StoredLetter:
    if about.letter != _VERSION:
        raise ValueError(f"it has the version {about.letter}, and this Penstock reads version {_VERSION}")
    at = datetime.fromisoformat(about.at)
    if at.tzinfo is None:
        raise ValueError(f"its time {about.at} has no zone")
    return StoredLetter(
        payload=event.value,
        reason=about.reason,
        stage=about.stage,
        key=event.key,
        headers=None if event.headers is None else tuple(event.headers),
        timestamp_ms=event.timestamp_ms,
        sequence=about.sequence,
        index=about.index,
        at=at.astimezone(UTC),
        id=about.id,
        origin=about.origin,
    )


def _text(data: bytes) -> Text:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return Base64(base64.b64encode(data).decode())


def _bytes(text: Text) -> bytes:
    return base64.b64decode(text.base64, validate=True) if isinstance(text, Base64) else text.encode()
