"""Open the letters that a route has stored at a place, whichever route it was."""

from __future__ import annotations

import os
from collections.abc import Mapping

from penstock.buffer import MANIFEST_PATH
from penstock.core import as_word
from penstock.engine.letters.kinds import LetterKind, kinds_at
from penstock.engine.letters.letter_files import LetterFiles
from penstock.engine.letters.places import LetterPlace, is_local
from penstock.engine.letters.to_buffer import LetterBuffer
from penstock.engine.letters.to_queue import LetterQueue
from penstock.errors import InvalidInput
from penstock.storage import local_path, redact

_MISSING = {
    LetterKind.FILES: "there are no files of dead letters at {}",
    LetterKind.QUEUE: "there is no durable queue at {}",
    LetterKind.BUFFER: "there is no buffer at {}: no manifest {!r}",
}


def open_letters(
    url: str,
    *,
    kind: str | None = None,
    options: Mapping[str, str] | None = None,
    manifest_path: str = MANIFEST_PATH,
) -> LetterPlace | None:
    """Open the letters at a path or URL. Without a kind it is found by looking; None where it is none of them.

    Raises `InvalidInput` where there is nothing of the given kind, and where there are several and none is given.
    """
    options = dict(options or {})
    wanted = None if kind is None else as_word("kind", LetterKind, kind)
    if is_local(url) and os.path.isfile(local_path(url)):
        raise InvalidInput(f"{redact(url)} is a file: give the directory that dead letters are in")
    found = kinds_at(url, options, manifest_path)
    if wanted is None:
        if len(found) > 1:
            raise InvalidInput(
                f"{redact(url)} is a place of several kinds, {' and '.join(sorted(found))}: give one of them (--kind)"
            )
        if not found:
            return None
        [wanted] = found
    elif wanted not in found:
        raise InvalidInput(_MISSING[wanted].format(redact(url), manifest_path))
    if wanted is LetterKind.BUFFER:
        return LetterBuffer(url, options, manifest_path)
    return LetterFiles(local_path(url)) if wanted is LetterKind.FILES else LetterQueue(local_path(url))
