"""`to_files`: a route that appends dead letters to files, a letter a line."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from io import FileIO

from penstock.core import Closing, check_seconds, check_whole, close_at_exit, forget, get_logger
from penstock.engine.dead_letters import DeadLetter
from penstock.engine.letters.encoding import line_of, stored
from penstock.engine.letters.kinds import LetterKind, check_own_place
from penstock.engine.letters.letter_files import (
    MARKER,
    OPEN_END,
    LetterFiles,
    has_letter_files,
    sealed_name,
    whole_lines,
)
from penstock.errors import CorruptData, InvalidInput, StorageError
from penstock.storage import InternalDirectory, local_path, locked_if_free, sync_directory, sync_upwards

_BEGINNING = "letters-"
_ABOUT = b"Dead letters of Penstock, a letter a line: penstock dlq list, show and replay work on this directory.\n"
_NAME_BYTES = 5
_OF_A_DISK = "lost+found"
"""In the top directory of an ext4 file system: a disk of its own for letters has it."""

_log = get_logger(__name__)


@dataclass(slots=True)
class _OpenFile:
    """A file that is appended to. Its lock is held as long as `file` is open."""

    file: FileIO
    name: str
    since: float
    synced: int = 0
    """How many of its bytes are durable. Every route that has returned wrote below."""

    def append(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            rest = rest[self.file.write(rest) :]
        os.fsync(self.file.fileno())

    def cut(self) -> None:
        """Take back what was written behind the last sync."""
        self.file.truncate(self.synced)
        os.fsync(self.file.fileno())


class FilesRoute(Closing):
    """What `to_files` returns: a route for dead letters. Safe to share between threads; `close` seals its file."""

    _instead_in_child = "call to_files here"

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        rotate_bytes: int,
        rotate_seconds: float,
        clock: Callable[[], float],
        uptime: Callable[[], float],
    ) -> None:
        super().__init__()
        check_whole("rotate_bytes", rotate_bytes)
        check_seconds("rotate_seconds", rotate_seconds)
        self._path = os.path.realpath(local_path(directory))
        self._rotate_bytes = rotate_bytes
        self._rotate_seconds = rotate_seconds
        self._clock = clock
        self._uptime = uptime
        self._lock = threading.Lock()
        self._file: _OpenFile | None = None
        try:
            self._make_directory()
            self._seal_files_of_killed_writers()
        except OSError as error:
            raise StorageError(f"{self._path} cannot be used for dead letters: {error.strerror or error}") from error
        close_at_exit(self)

    def __repr__(self) -> str:
        return f"to_files({self._path!r})"

    def __call__(self, letters: Sequence[DeadLetter]) -> None:
        """Store letters, and return when they are durable.

        Raises `StorageError` where the disk refuses: what was written of them is taken back, as far as that can be.
        """
        self._check_process()
        data = b"".join(line_of(letter) + b"\n" for letter in stored(letters, self._clock))
        with self._lock:
            self._check_open()
            if not data:
                return
            try:
                self._append(data)
            except OSError as error:
                raise StorageError(
                    f"{len(letters)} dead letters could not be written to {self._path}: {error.strerror or error}"
                ) from error

    def close(self) -> None:
        """Seal the file. A second `close` does nothing."""
        if self._is_in_child:
            return  # it is the parent's
        with self._lock:
            self._is_closed = True
            file, self._file = self._file, None
            if file is not None:
                self._seal_if_possible(file)
        forget(self)

    def _append(self, data: bytes) -> None:
        # It is not this route's file until all is synced: an interrupt at any line leaves none to append to behind a
        # torn line.
        file, self._file = self._file, None
        if file is not None and not self._is_in_place(file):
            _log.warning("%s in %s was moved or removed: the next letters go to another file", file.name, self._path)
            file.file.close()
            file = None
        if file is not None and self._is_due(file):
            self._seal(file)
            file = None
        if file is None:
            file = self._begin()
        try:
            file.append(data)
            if not file.synced:
                sync_directory(self._path)
            synced = file.synced + len(data)
        except BaseException:
            self._take_back(file)
            raise
        file.synced = synced
        self._file = file

    def _is_in_place(self, file: _OpenFile) -> bool:
        """Whether a reader finds the file: what is written to one that was removed is gone when it is closed."""
        try:
            there = os.stat(os.path.join(self._path, file.name))
        except FileNotFoundError:
            return False
        return os.path.samestat(there, os.fstat(file.file.fileno()))

    def _is_due(self, file: _OpenFile) -> bool:
        return file.synced >= self._rotate_bytes or self._uptime() - file.since >= self._rotate_seconds

    def _begin(self) -> _OpenFile:
        while True:
            at = datetime.fromtimestamp(self._clock(), UTC).strftime("%Y%m%dT%H%M%S.%fZ")
            name = f"{_BEGINNING}{at}-{os.urandom(_NAME_BYTES).hex()}{OPEN_END}"
            file = self._locked(name)
            if file is not None and not os.fstat(file.fileno()).st_size:
                return _OpenFile(file, name, self._uptime())

    def _take_back(self, file: _OpenFile) -> None:
        """Cut what is not synced, and do not use the file again: after a failed sync the system may drop its pages."""
        try:
            file.cut()
        except OSError as error:
            file.file.close()
            _log.warning("%s in %s is left to the next writer: %s", file.name, self._path, error)
        else:
            self._seal_if_possible(file)

    def _seal_if_possible(self, file: _OpenFile) -> None:
        try:
            self._seal(file)
        except OSError as error:  # its letters are durable, and are read all the same
            _log.warning("%s in %s was not sealed: %s", file.name, self._path, error)

    def _seal(self, file: _OpenFile) -> None:
        """Rename a file of whole lines, or remove an empty one, and release its lock."""
        try:
            path = os.path.join(self._path, file.name)
            if file.synced:
                os.rename(path, sealed_name(path))
            else:
                os.unlink(path)
            sync_directory(self._path)
        finally:
            file.file.close()

    def _make_directory(self) -> None:
        if os.path.exists(self._path) and not os.path.isdir(self._path):
            raise InvalidInput(f"{self._path} is a file: dead letters need a directory")
        os.makedirs(self._path, exist_ok=True)
        check_own_place(self._path, LetterKind.FILES)
        if not os.path.exists(os.path.join(self._path, MARKER)):
            self._check_is_for_letters()
        with open(os.path.join(self._path, MARKER), "ab") as marker:
            if not marker.tell():
                marker.write(_ABOUT)
                marker.flush()
                os.fsync(marker.fileno())
        sync_upwards(self._path)

    def _check_is_for_letters(self) -> None:
        """Raise `InvalidInput` for a directory with something else in it."""
        others = [name for name in os.listdir(self._path) if not name.startswith(".") and name != _OF_A_DISK]
        if has_letter_files(self._path):
            try:
                next(LetterFiles(self._path).letters(), None)
            except CorruptData as error:
                raise InvalidInput(
                    f"{self._path} has other lines than dead letters: {error}. Give dead letters a directory of their "
                    "own"
                ) from error
        elif others:
            raise InvalidInput(
                f"{self._path} has other files, such as {min(others)}: give dead letters a directory of their own"
            )

    def _seal_files_of_killed_writers(self) -> None:
        for name in sorted(os.listdir(self._path)):
            if not (name.startswith(_BEGINNING) and name.endswith(OPEN_END)):
                continue
            file = self._locked(name)
            if file is None:
                continue  # it has a writer
            with open(file.fileno(), "rb", closefd=False) as lines:
                size, are_letters = whole_lines(lines)
            why = "" if are_letters else "has a line that is no letter"
            if size and os.path.exists(os.path.join(self._path, sealed_name(name))):
                why = "is there under its sealed name too"  # in a copy of a directory; the sealed one has all of it
            if why:
                _log.warning("%s in %s %s, and is left as it is", name, self._path, why)
                file.close()
                continue
            found = _OpenFile(file, name, self._uptime(), size)
            found.cut()
            self._seal(found)

    def _locked(self, name: str) -> FileIO | None:
        """Create or open a file of letters, and lock it; None if another writer has it."""
        internal = InternalDirectory(self._path)
        try:
            return locked_if_free(internal, name, FileIO)
        finally:
            os.close(internal.descriptor)


def to_files(
    directory: str | os.PathLike[str],
    *,
    rotate_bytes: int = 64 << 20,
    rotate_seconds: float = 3600.0,
    clock: Callable[[], float] = time.time,
    uptime: Callable[[], float] = time.monotonic,
) -> FilesRoute:
    """A route that appends dead letters to files in a directory, as lines of JSON: for `DlqPolicy.route`.

    It returns when they are durable. A file is sealed, and the next one begun, before the block after it has
    `rotate_bytes` or was open for `rotate_seconds`. Any number of engines, in any processes, may use one directory.
    `penstock dlq` lists, shows and replays them. Whether it is closed or not, nothing is lost.

    Raises `InvalidInput` for a directory that has other things in it, and `StorageError` where it cannot be used.

    >>> import tempfile
    >>> from penstock.engine import BatchEngine, DlqPolicy
    >>> with to_files(tempfile.mkdtemp()) as letters:
    ...     engine = BatchEngine(dlq=DlqPolicy.route(letters))
    """
    return FilesRoute(directory, rotate_bytes=rotate_bytes, rotate_seconds=rotate_seconds, clock=clock, uptime=uptime)
