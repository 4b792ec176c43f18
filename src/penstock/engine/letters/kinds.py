"""What lies at a place: letters go to a place of their own, and are read as what they are."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from enum import StrEnum

from penstock.buffer import MANIFEST_PATH
from penstock.engine.letters.letter_files import has_letter_files
from penstock.engine.letters.places import is_local
from penstock.errors import InvalidInput, NotFound
from penstock.queue import is_queue
from penstock.storage import local_path, open_store, redact


class LetterKind(StrEnum):
    """What the routes of the engine store letters in. What is none of them may be a table."""

    FILES = "files"
    QUEUE = "queue"
    BUFFER = "buffer"


LETTER_KINDS = tuple(LetterKind)


def kinds_at(url: str, options: Mapping[str, str] | None = None, manifest_path: str = MANIFEST_PATH) -> set[LetterKind]:
    """The kinds of which there are signs at a place. Looks only; what the letters are is not read."""
    found = set[LetterKind]()
    if is_local(url):
        path = local_path(url)
        if not os.path.isdir(path):
            return found
        if has_letter_files(path):
            found.add(LetterKind.FILES)
        if is_queue(path):
            found.add(LetterKind.QUEUE)
    with suppress(NotFound):
        open_store(url, **(options or {})).head(manifest_path)
        found.add(LetterKind.BUFFER)
    return found


def check_own_place(path: str, kind: LetterKind) -> None:
    """Raise `InvalidInput` where something of another kind is at a path on this host's disk."""
    others = kinds_at(path) - {kind}
    if others:
        raise InvalidInput(
            f"{redact(path)} is a place of another kind ({', '.join(sorted(others))}): give these dead letters a place "
            "of their own"
        )
