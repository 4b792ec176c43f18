"""A directory of files with dead letters, a letter a line: the names of the files, and how they are read."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from io import BufferedReader
from typing import IO

from penstock.core import get_logger
from penstock.engine.letters.encoding import letter_of_line
from penstock.engine.letters.letter import StoredLetter
from penstock.engine.letters.places import each_once, open_notes
from penstock.errors import CorruptData, NotFound, StorageError
from penstock.storage import ObjectStore

MARKER = ".penstock-letters"
SEALED_END = ".ndjson"
OPEN_END = ".ndjson.open"
"""Of a file that has a writer, or had one that was killed."""

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class LetterFiles:
    """The letters in a directory of files."""

    path: str

    @property
    def buffer_id(self) -> str | None:
        """None: it is no buffer."""
        return None

    def notes(self) -> ObjectStore:
        """The store beside the directory."""
        return open_notes(self.path, {})

    def letters(self) -> Iterator[StoredLetter]:
        """All letters, file by file, the oldest file first.

        Raises `CorruptData` for a line of a sealed file that is no letter, `NotFound` where a file was removed
        meanwhile, and `StorageError` for one that cannot be read.
        """
        return each_once(self._letters())

    def _letters(self) -> Iterator[StoredLetter]:
        # A file that is sealed while a directory is listed may be in no listing, for it gets another name. That happens
        # to it once: it is in one of two listings.
        names = {sealed_name(name) for _ in range(2) for name in _letter_files_in(self.path)}
        for name in sorted(names):
            try:
                file, is_sealed = _open(os.path.join(self.path, name))
                with file:
                    yield from _letters_of(file, name, is_sealed=is_sealed)
            except FileNotFoundError as error:
                raise NotFound(f"{name} in {self.path} was removed while it was to be read", location=name) from error
            except CorruptData as error:
                raise CorruptData(
                    f"{error}. The letters behind it are not read: mend the line, or move the file out of {self.path}"
                ) from error
            except OSError as error:
                raise StorageError(f"{name} in {self.path} cannot be read: {error.strerror or error}") from error


def sealed_name(name: str) -> str:
    """The name of a file when it is sealed."""
    return name.removesuffix(".open")


def has_letter_files(path: str) -> bool:
    """Whether a directory is one of dead letters."""
    return os.path.exists(os.path.join(path, MARKER)) or bool(_letter_files_in(path))


def whole_lines(file: IO[bytes]) -> tuple[int, bool]:
    """How many bytes at the beginning of a file are whole lines, and whether each of these is a letter."""
    size, are_letters = 0, True
    for line in file:
        if not line.endswith(b"\n"):
            break
        size += len(line)
        try:
            letter_of_line(line)
        except CorruptData:
            are_letters = False
    return size, are_letters


def _letter_files_in(path: str) -> list[str]:
    try:
        return [name for name in os.listdir(path) if name.endswith((SEALED_END, OPEN_END))]
    except OSError as error:
        raise StorageError(f"the dead letters in {path} cannot be listed: {error.strerror or error}") from error


def _open(path: str) -> tuple[BufferedReader, bool]:
    """Open a file under the name that it has now; return whether it is sealed."""
    # Sealed first: a writer that looks for files of killed ones may create an empty file of the other name for a
    # moment. And once more: it may be sealed between the first two.
    for name in (path, f"{path}.open"):
        try:
            return open(name, "rb"), name == path
        except FileNotFoundError:
            continue
    return open(path, "rb"), True


def _letters_of(file: BufferedReader, name: str, *, is_sealed: bool) -> Iterator[StoredLetter]:
    for number, line in enumerate(file, 1):
        if not line.endswith(b"\n"):
            if is_sealed:
                raise CorruptData(f"line {number} of {name}, which is sealed, has no end: its file was cut")
            return  # it is being written, or was when its writer was killed: no route has returned for it
        try:
            letter = letter_of_line(line)
        except CorruptData as error:
            if is_sealed:
                raise CorruptData(f"line {number} of {name}: {error}") from error
            _log.warning("reading the letters before line %d of %s, which is not sealed: %s", number, name, error)
            return
        yield letter
