"""`FileReceiver`: files that match a pattern as a source of blocks. Its invariants: `docs/design/file-receiver.md`."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from io import FileIO
from typing import Any, NamedTuple, TypeAlias

import pyarrow as pa

from penstock.core import Backoff, Closing, as_word, check_seconds, check_whole, get_logger
from penstock.engine.dead_letters import DeadLetter
from penstock.engine.transports.contract import Filter, Receiver, check_limits, checked_filters, filtered
from penstock.engine.transports.file_finding import default_state, find, matching, open_file, renumbered
from penstock.engine.transports.file_rows import READERS, FileFormat, OpenRows, Replaced, Room, Rows, check_head
from penstock.engine.transports.file_state import HEAD_BYTES, TAIL_BYTES, FileState, KnownFile, digest
from penstock.engine.work_batch import WorkBatch
from penstock.errors import Closed, InvalidInput, StorageError
from penstock.records import values_to_arrow

MAX_LINE_BYTES = 16 << 20
_MAX_BLOCK_BYTES = 64 << 20  # where a receive has no limit
_MAX_OPEN_FILES = 200
_SCAN_SECONDS = 0.5
_FIRST_POLL_SECONDS, _LONGEST_POLL_SECONDS = 0.01, 0.25

_Seen: TypeAlias = tuple[int, int, bool]
"""The size and time of change of a file when its end was read, and whether its last line needed no newline."""

_log = get_logger(__name__)


class FileToken(NamedTuple):
    """How far a block goes in a file. `file` is the file's number in the state, which no other file ever has.

    `tail` is a hash of the bytes before the offset: a token that a sink kept is worth nothing in a file that was
    truncated since.
    """

    file: int
    offset: int
    tail: str = ""


class _Reading:
    """A file that is open."""

    def __init__(self, file: FileIO, rows: OpenRows) -> None:
        self.file = file
        self.rows = rows
        self.turn_end: int | None = None  # its size when its turn began: a file that grows fast yields to others
        self.seen: _Seen | None = None


class FileReceiver(Closing, Receiver):
    """Receives the rows of files that match a pattern, and goes on after a restart where it had committed.

    `format` is "ndjson" (a line is a record), "csv" (the first line has the names; each row becomes a JSON object of
    strings) or "parquet" (a row becomes a JSON object); without it the name decides, and a file that is neither
    `.csv` nor `.parquet` has lines. Empty lines are no records. New files are found while it runs. A file is known by
    its inode and its first bytes: one that is renamed goes on at its offset, also under a name that does not match; one
    that is truncated or replaced begins at 0.

    Offsets are in `state`, by default a hidden file in the folder of the pattern, which one receiver at a time has. A
    token is a `FileToken`. A line without its newline waits for it; with `last_line_after`, until its file was not
    modified for so many seconds. A line of more than `max_line_bytes` is a dead letter. For one thread at a time.

    Raises `InvalidInput` for a folder that does not exist, `StorageError` where the state is in use, and `CorruptData`.
    """

    _instead_in_child = "make a FileReceiver here, after the parent's is closed"

    def __init__(
        self,
        glob: str | os.PathLike[str],
        *,
        state: str | os.PathLike[str] | None = None,
        format: str | None = None,  # noqa: A002  the word that users expect
        filters: Iterable[Filter] = (),
        max_line_bytes: int = MAX_LINE_BYTES,
        last_line_after: float | None = None,
    ) -> None:
        super().__init__()
        check_whole("max_line_bytes", max_line_bytes, most=1 << 30)
        if last_line_after is not None:
            check_seconds("last_line_after", last_line_after, zero=True)
        self._format = None if format is None else as_word("format", FileFormat, format)
        self._filters = checked_filters(filters)
        self._glob = os.path.abspath(os.fspath(glob))
        self._max_line_bytes = max_line_bytes
        self._last_line_after = last_line_after
        path = default_state(self._glob) if state is None else os.path.abspath(os.fspath(state))
        if not os.path.isdir(os.path.dirname(path)):
            raise InvalidInput(f"{os.path.dirname(path)} is no folder: create it, or give state= in one that exists")
        self._state = FileState(path)
        self._reading: dict[int, _Reading] = {}
        self._ends: dict[int, _Seen] = {}  # of files that were closed at their end
        self._missing = set[int]()  # files that were not there in the last scan
        self._compressed = set[str]()  # paths that were warned of
        self._current = 0
        self._scanned = float("-inf")
        self._poll = Backoff(_FIRST_POLL_SECONDS, _LONGEST_POLL_SECONDS, jitter=lambda: 1.0)
        self._has_failed = False
        self._closing = threading.Event()
        self._using = threading.RLock()

    @property
    def healthy(self) -> bool:
        """Whether it is open and of this process, and the last receive or commit worked."""
        return not self._is_in_child and not self._is_closed and not self._has_failed

    def __repr__(self) -> str:
        return f"FileReceiver({self._glob!r})"

    def recv(self, max_records: int, max_bytes: int | None = None, timeout: float = 0.1) -> WorkBatch:
        """Receive rows of one file or more, and wait for the first of them.

        Raises `StorageError` for a file that cannot be read, `CorruptData` for a header of CSV that is none, `Closed`.
        """
        check_limits(max_records, max_bytes, timeout)
        self._check_process()
        most = _MAX_BLOCK_BYTES if max_bytes is None else max_bytes
        until = time.monotonic() + timeout
        with self._using:
            self._check_open()
            try:
                batch = self._wait_for_rows(max_records, most, until)
                if self._filters:
                    batch = filtered(batch, self._filters)
            except BaseException as error:
                self._has_failed = True
                if not self._is_closed:
                    self.rewind()
                if isinstance(error, OSError):
                    raise StorageError(f"{self!r} cannot read: {error.strerror or error}") from error
                raise
            self._has_failed = False
            return batch

    def commit(self, tokens: Sequence[Any]) -> None:
        """Make these offsets durable; an offset never moves back. Also for tokens that a sink kept from an earlier run.

        Raises `InvalidInput` for a file that this state never had, and `StorageError` where it cannot be written.
        """
        self._check_process()
        with self._using:
            self._check_open()
            files = dict(self._state.files)
            for token in tokens:
                number, offset, tail = _checked(token)
                if number >= self._state.next_id:
                    raise InvalidInput(f"commit of {token!r}: the state {self._state.path} never had that file")
                if number in files and offset > files[number].offset:  # one that is gone needs no offset
                    files[number] = self._committed(files[number], offset, tail)
            if files == self._state.files:
                return
            try:
                self._state.save(files, self._state.next_id)
            except BaseException:
                self._has_failed = True
                raise
            for number, one in self._reading.items():
                if number in files and one.rows.offset < files[number].offset:  # a token of an earlier run
                    one.rows.go_to(files[number])
            self._close_some()

    def rewind(self) -> None:
        """Go back to the committed offsets."""
        self._check_process()
        with self._using:
            self._ends.clear()
            # Opened and checked anew: a file may have been truncated since.
            for number in [number for number, one in self._reading.items() if not self._goes_back(number, one)]:
                self._reading.pop(number).file.close()

    def close(self) -> None:
        """Close the files, and let another receiver have the state. A second `close` does nothing."""
        self._check_process()
        self._is_closed = True
        self._closing.set()
        with self._using:
            while self._reading:
                self._reading.popitem()[1].file.close()
            self._state.close()

    def _wait_for_rows(self, max_rows: int, max_bytes: int, until: float) -> WorkBatch:
        while True:
            if time.monotonic() - self._scanned >= _SCAN_SECONDS:
                self._scan()
                self._scanned = time.monotonic()
            batch = self._gather(max_rows, max_bytes)
            if batch.commit_tokens:
                self._poll.reset()
                return batch
            remaining = until - time.monotonic()
            if remaining <= 0:
                return batch
            self._closing.wait(min(self._poll.seconds(), remaining))
            if self._is_closed:
                raise Closed(f"{self!r} is closed")

    def _gather(self, max_rows: int, max_bytes: int) -> WorkBatch:
        block = _Block(max_rows, max_bytes)
        numbers = list(self._state.files)
        start = numbers.index(self._current) if self._current in numbers else 0
        order = numbers[start:] + numbers[:start]
        for number, following in zip(order, [*order[1:], *order[:1]], strict=True):
            has_turn = self._read_into(block, number)
            self._current = number if has_turn else following
            if block.is_full or (block.tokens and len(self._reading) >= _MAX_OPEN_FILES):
                break
        return WorkBatch(values_to_arrow(block.values), block.tokens, block.letters)

    def _read_into(self, block: _Block, number: int) -> bool:
        """Read a file until the block is full or its turn is over; return whether it still has its turn."""
        one = self._opened(number)
        if one is None:
            return False
        found = os.fstat(one.file.fileno())
        if one.turn_end is None:
            one.turn_end = found.st_size
        start = one.rows.offset
        is_old = self._is_old(found)
        try:
            while not block.is_full:
                before = one.rows.offset
                rows = one.rows.read(block.room, with_last=is_old)
                if rows.offset == before:
                    if rows.is_cut:
                        return True  # the next row does not fit into this block
                    self._note_end(number, one, (found.st_size, found.st_ctime_ns, is_old))
                    return False
                block.add(rows)
                if one.rows.offset >= one.turn_end < found.st_size:
                    one.turn_end = None
                    return False
        except Replaced:
            self._begin_anew(number)
            return False
        except (OSError, pa.ArrowException) as error:
            raise StorageError(f"{self._state.files[number].path} cannot be read: {error}") from error
        finally:
            if one.rows.offset > start:
                tail = one.rows.tail
                block.tokens.append(FileToken(number, one.rows.offset, digest(tail) if tail else ""))
        return True

    def _note_end(self, number: int, one: _Reading, seen: _Seen) -> None:
        one.seen, one.turn_end = seen, None
        if one.rows.offset == self._state.files[number].offset:  # of the others, `commit` closes some
            self._close_some()

    def _close_some(self) -> None:
        """Close files at their end, the first that were opened, where too many are open: half of them, at once."""
        if len(self._reading) < _MAX_OPEN_FILES:
            return
        for number, one in list(self._reading.items()):
            if len(self._reading) <= _MAX_OPEN_FILES // 2:
                return
            if one.seen is not None and one.rows.offset == self._state.files[number].offset:
                self._ends[number] = one.seen
                self._reading.pop(number).file.close()

    def _opened(self, number: int) -> _Reading | None:
        """The file, open; None where it has nothing new, or is not there."""
        one = self._reading.get(number)
        known = self._state.files[number]
        if one is not None:
            if one.seen is not None:
                if self._is_as_seen(os.fstat(one.file.fileno()), one.seen):
                    return None
                try:
                    one.rows.changed(known)
                except Replaced:
                    self._begin_anew(number)
                    return None
            one.seen = None
            return one
        path = find(known)
        if path is None:
            return None
        seen = self._ends.pop(number, None)
        if seen is not None and self._is_as_seen(os.stat(path), seen):
            self._ends[number] = seen
            return None
        file = open_file(path)
        if file is None:
            return None
        try:
            one = self._checked(file, known)
        except Replaced:
            self._begin_anew(number)
            return None
        finally:
            if one is None:
                file.close()
        if one is not None:
            self._reading[number] = one
        return one

    def _checked(self, file: FileIO, known: KnownFile) -> _Reading | None:
        """The file at its committed offset; None where it is another one: renamed since, the next scan finds it."""
        found = os.fstat(file.fileno())
        if (found.st_dev, found.st_ino) != known.key:
            return None
        check_head(file.fileno(), known)
        return _Reading(file, READERS[known.format](file.fileno(), known, self._max_line_bytes))

    def _goes_back(self, number: int, one: _Reading) -> bool:
        """Whether a file that is open has no name to open it by again, and is back at its committed offset."""
        known = self._state.files.get(number)
        try:
            if known is None or find(known) is not None:
                return False
            one.rows.changed(known)
            one.rows.go_to(known)
        except (OSError, Replaced):
            return False
        one.seen = one.turn_end = None
        return True

    def _begin_anew(self, number: int) -> None:
        """The file was truncated or replaced: what is in it now is another one, from its start."""
        known = self._state.files[number]
        _log.warning("%s was truncated or written anew: it is read from its start", known.path)
        one = self._reading.pop(number, None)
        if one is not None:
            one.file.close()
        files = {other: file for other, file in self._state.files.items() if other != number}
        fresh = self._new_file(known.path, self._state.next_id)
        # At its path there may be another file now, which is known.
        if fresh is not None and all(file.key != fresh.key for file in files.values()):
            files[fresh.id] = fresh
        self._state.save(files, self._state.next_id + 1)

    def _scan(self) -> None:
        """Look for new files, for renamed ones, and for ones that are gone; durable before a row of them is read."""
        found, compressed = matching(self._glob, self._state.paths)
        for path in sorted(set(compressed) - self._compressed):
            _log.warning("%s is compressed, and not read: as a rotated file, it was read under its name before", path)
        self._compressed = set(compressed)
        files = dict(self._state.files)
        missing = [number for number, known in files.items() if known.key not in found]
        self._missing &= set(missing)
        for number, known in files.items():
            if known.key in found:
                files[number] = replace(known, path=found.pop(known.key).path)
        for number in missing:
            key = None if number in self._reading else renumbered(files[number], found)
            if key is not None:
                files[number] = replace(files[number], device=key[0], path=found.pop(key).path)
            elif self._is_gone(number, files[number]):
                del files[number]
        next_id = self._state.next_id
        for one, key in sorted((one, key) for key, one in found.items()):
            fresh = self._new_file(one.path, next_id)
            if fresh is not None and fresh.key == key:  # or else it was renamed since, and this may be a known one
                files[next_id] = fresh
                next_id += 1
        if files != self._state.files:
            self._state.save(files, next_id)

    def _new_file(self, path: str, number: int) -> KnownFile | None:
        file = open_file(path)
        if file is None:
            return None
        with file:
            found = os.fstat(file.fileno())
            head = os.pread(file.fileno(), HEAD_BYTES, 0)
        kind = self._format or _format_of(path)
        return KnownFile(number, path, found.st_dev, found.st_ino, kind, 0, len(head), digest(head))

    def _is_gone(self, number: int, known: KnownFile) -> bool:
        """Whether a file that matches no more is deleted, and all of it that could be read is committed."""
        one = self._reading.get(number)
        if one is None:
            if find(known) is not None:
                return False
            if number not in self._missing:
                self._missing.add(number)
                return False
            _log.info("%s is gone, and not read any more", known.path)
            self._ends.pop(number, None)
            return True
        about = os.fstat(one.file.fileno())
        if about.st_nlink or one.seen is None or not self._is_as_seen(about, one.seen):
            return False
        if one.rows.offset > known.offset:
            return False  # it comes again if that is not committed
        if not one.rows.is_at_end:
            _log.warning("%s was deleted: its last line, at offset %d, has no newline", known.path, one.rows.offset)
        one.file.close()
        del self._reading[number]
        return True

    def _committed(self, known: KnownFile, offset: int, tail: str) -> KnownFile:
        known = replace(known, offset=offset, tail_bytes=min(offset, TAIL_BYTES) if tail else 0, tail=tail)
        one = self._reading.get(known.id)
        if one is None:
            return known
        if known.head_bytes < HEAD_BYTES:
            head = os.pread(one.file.fileno(), HEAD_BYTES, 0)
            if digest(head[: known.head_bytes]) == known.head:
                known = replace(known, head_bytes=len(head), head=digest(head))
        return known

    def _is_old(self, found: os.stat_result) -> bool:
        return self._last_line_after is not None and time.time() - found.st_mtime >= self._last_line_after

    def _is_as_seen(self, found: os.stat_result, seen: _Seen) -> bool:
        return (found.st_size, found.st_ctime_ns, self._is_old(found)) == seen


class _Block:
    """The rows of a receive, within its limits."""

    def __init__(self, max_rows: int, max_bytes: int) -> None:
        self._max_rows = max_rows
        self._max_bytes = max_bytes
        self.values: list[bytes] = []
        self.letters: list[DeadLetter] = []
        self.tokens: list[FileToken] = []
        self._size = 0

    @property
    def room(self) -> Room:
        """How much fits."""
        count = len(self.values) + len(self.letters)
        return Room(self._max_rows - count, self._max_bytes - self._size, is_all=not count)

    @property
    def is_full(self) -> bool:
        """Whether no row fits."""
        room = self.room
        return room.rows <= 0 or (room.bytes <= 0 and not room.is_all)

    def add(self, rows: Rows) -> None:
        self.values += rows.values
        self.letters += rows.letters
        self._size += rows.size


def _format_of(path: str) -> FileFormat:
    suffix = os.path.splitext(path)[1].lower()
    return {".csv": FileFormat.CSV, ".parquet": FileFormat.PARQUET}.get(suffix, FileFormat.NDJSON)


def _checked(token: Any) -> FileToken:
    try:
        checked = FileToken(*token)
    except TypeError:
        raise InvalidInput(f"a token is (file, offset, tail), not {token!r:.100}") from None
    check_whole("the file of a token", checked.file, 1)
    check_whole("the offset of a token", checked.offset, 0)
    if type(checked.tail) is not str:
        raise InvalidInput(f"the tail of a token is a hash, not {checked.tail!r:.100}")
    return checked
