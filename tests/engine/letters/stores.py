"""The three places that a route of the engine stores dead letters in, each with its route and its reader."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from penstock.engine import DeadLetter, StoredLetter, open_letters, to_buffer, to_files, to_queue

ROUTES: dict[str, Any] = {"files": to_files, "queue": to_queue, "buffer": to_buffer}
KINDS = list(ROUTES)
SHARED = ["files", "buffer"]
"""Those that several processes can have open at once."""


def stored_at(place: Path | str) -> list[StoredLetter]:
    """The letters at a place, found by looking."""
    found = open_letters(str(place))
    assert found is not None
    return list(found.letters())


def payloads_at(place: Path | str) -> list[bytes | None]:
    return [letter.payload for letter in stored_at(place)]


def letters(*payloads: bytes) -> list[DeadLetter]:
    return [DeadLetter(payload, "it ends too early", stage="parse") for payload in payloads]


def fields_of(letter: DeadLetter) -> tuple[object, ...]:
    """What a letter has, in the form that a stored one has it too."""
    identity = letter.identity
    place = (None, None, None) if identity is None else (identity.origin, identity.sequence, identity.index)
    event = (letter.payload, letter.key, letter.headers, letter.timestamp_ms)
    return (*event, letter.reason, letter.stage, *place)


def fields_of_stored(found: Sequence[StoredLetter]) -> list[tuple[object, ...]]:
    return [
        (
            *(one.payload, one.key, one.headers, one.timestamp_ms, one.reason, one.stage),
            *(one.origin, one.sequence, one.index),
        )
        for one in found
    ]
