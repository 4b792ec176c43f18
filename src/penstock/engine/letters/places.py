"""A place of dead letters: what `penstock dlq` reads, whatever the letters are stored in."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Protocol

from penstock.engine.letters.letter import StoredLetter
from penstock.storage import ObjectStore, local_path, open_store


class LetterPlace(Protocol):
    """Where dead letters are."""

    @property
    def buffer_id(self) -> str | None:
        """The id of the buffer that they are in; None where they are in no buffer."""
        ...

    def letters(self) -> Iterator[StoredLetter]:
        """All letters, each with an id that stays. Of those that were given, no more than their ids is in memory.

        Raises `InvalidInput` where something else is there, and `NotFound` where letters were moved or removed
        meanwhile: then begin again.
        """
        ...

    def notes(self) -> ObjectStore:
        """A store for what is kept about the letters."""
        ...


def notes_beside(url: str, options: Mapping[str, str]) -> tuple[str, Mapping[str, str]]:
    """Where the notes about a place are, as `open_store` takes it.

    Not in it on a disk: a compaction exchanges a table's directory, and a queue's is the queue's alone.
    """
    if not is_local(url):
        return f"{url.rstrip('/')}/_replays", options
    above, name = os.path.split(os.path.realpath(local_path(url)))
    return os.path.join(above, f".{name}.replays"), {}


def open_notes(url: str, options: Mapping[str, str]) -> ObjectStore:
    """The store with the notes about a place."""
    where, settings = notes_beside(url, options)
    return open_store(where, **settings)


def is_local(url: str) -> bool:
    """Whether a path or URL is one of this host's disk."""
    scheme, separator, _ = url.partition("://")
    return not separator or scheme == "file"


def each_once(letters: Iterable[StoredLetter]) -> Iterator[StoredLetter]:
    """Letters whose ids are their own, without the copies of them."""
    seen = set[str]()
    for letter in letters:
        if letter.id not in seen:
            seen.add(letter.id)
            yield letter
