"""A dead letter as it is stored, with an id that stays, and the rows of a table of them."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pyarrow as pa

from penstock.errors import InvalidInput
from penstock.records import Headers

COLUMNS = ("payload", "key", "headers", "reason", "stage", "sequence", "index", "at")
_ID_DIGITS = 20
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class StoredLetter:
    """A dead letter: what a fix function gets.

    `sequence` and `index` are where its event was, if that is known: in the buffer, or, where there is an `origin`, in
    that run of an engine. `at` is when it was set aside.
    """

    payload: bytes | None = field(repr=False)
    reason: str
    stage: str
    key: bytes | None = None
    headers: Headers | None = None
    timestamp_ms: int | None = None
    sequence: int | None = None
    index: int | None = None
    at: datetime | None = None
    id: str = ""
    origin: str | None = None


@dataclass(frozen=True, slots=True)
class Filter:
    """Which letters: those of which all that is given is true."""

    reason: str | None = None
    stage: str | None = None
    since: datetime | None = None

    def matcher(self) -> Callable[[StoredLetter], bool]:
        """A function that says whether a letter is one of them."""
        search = None if self.reason is None else _searching(self.reason)

        def matches(letter: StoredLetter) -> bool:
            if self.stage is not None and letter.stage != self.stage:
                return False
            if self.since is not None and (letter.at is None or letter.at < self.since):
                return False
            return search is None or search(letter.reason)

        return matches


def letters_in(batches: Iterable[pa.RecordBatch]) -> Iterator[StoredLetter]:
    """The letters of a table. Raises `InvalidInput` where its columns are not those of dead letters.

    An id is a hash of all that the table has of a letter. Where two are equal in all of it, they are counted: which of
    them is the second does not matter.
    """
    seen: dict[str, int] = {}
    for batch in batches:
        missing = [name for name in COLUMNS if name not in batch.schema.names]
        if missing:
            raise InvalidInput(
                f"this is no table of dead letters: it has no column {missing[0]!r}; it has "
                f"{', '.join(batch.schema.names)}"
            )
        for row in batch.to_pylist():
            letter = _letter(row)
            if letter.index is None:  # an event's place in the buffer is its own
                count = seen[letter.id] = seen.get(letter.id, -1) + 1
                letter = replace(letter, id=f"{letter.id}-{count}") if count else letter
            yield letter


def _letter(row: dict[str, Any]) -> StoredLetter:
    headers = None if row["headers"] is None else tuple((one["key"], one["value"]) for one in row["headers"])
    at, timestamp = _utc(row["at"]), _utc(row.get("timestamp"))
    # No headers and empty ones are the same here: some readers do not tell them apart.
    content = [row["payload"], row["key"], headers or None, row["reason"], row["stage"], row["sequence"], row["index"]]
    content += [_microseconds(at), _microseconds(timestamp)]
    digest = hashlib.sha256(msgspec.msgpack.encode(content)).hexdigest()[:_ID_DIGITS]
    return StoredLetter(
        payload=row["payload"],
        reason=row["reason"] or "",
        stage=row["stage"] or "",
        key=row["key"],
        headers=headers,
        timestamp_ms=None if timestamp is None else round(timestamp.timestamp() * 1000),
        sequence=row["sequence"],
        index=row["index"],
        at=at,
        id=digest,
    )


def _utc(at: datetime | None) -> datetime | None:
    return None if at is None else at.replace(tzinfo=UTC) if at.tzinfo is None else at.astimezone(UTC)


def _microseconds(at: datetime | None) -> int | None:
    return None if at is None else (at - _EPOCH) // timedelta(microseconds=1)


def _searching(text: str) -> Callable[[str], bool]:
    """Search for a regular expression, or for the text itself where it is none."""
    try:
        expression = re.compile(text)
    except re.error:
        return lambda reason: text in reason
    return lambda reason: expression.search(reason) is not None or text in reason
