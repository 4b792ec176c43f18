"""`penstock produce`: put lines, or whole files, into a buffer."""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

from penstock.buffer import Compression, Producer, ProducerConfig, WriteHandle, Written
from penstock.cli.output import counted, not_printed, say
from penstock.cli.places import BatchFormatOption, StorageOptions, Where, open_with
from penstock.core import StopOnSignal, get_logger
from penstock.errors import InvalidInput, PenstockError, StorageError
from penstock.records import Record

STDIN = "-"
MAX_LINE_BYTES = 64 << 20
_READ_BYTES = 1 << 20
_LONGEST_WAIT_SECONDS = 0.5  # for input; then the events under way are looked at

_log = get_logger(__name__)


def produce_command(
    where: Where,
    files: Annotated[
        list[str] | None, typer.Argument(metavar="[FILE]...", help="What to read; - or none is standard input.")
    ] = None,
    key: Annotated[str | None, typer.Option(help="The key of every event.")] = None,
    whole: Annotated[bool, typer.Option("--whole", help="Each file is one event.")] = False,
    keep_empty: Annotated[bool, typer.Option("--keep-empty", help="Empty lines, or files, are events too.")] = False,
    compression: Annotated[Compression, typer.Option(help="How data objects are compressed.")] = Compression.NONE,
    batch_format: BatchFormatOption = None,
    storage_options: StorageOptions = None,
) -> None:
    """Put each line of the input into a buffer as an event, without its newline.

    The input may be endless. Ctrl-C or SIGTERM ends it: whole lines that were read are flushed. A second signal ends it
    at once. In every other case it prints how many events are known to be durable.
    """
    store = open_with(where, storage_options)
    names = files or [STDIN]
    _check_files(names)
    with StopOnSignal() as stop, not_printed("penstock.buffer.producer.batches"), not_printed("penstock.core.closing"):
        tally = _Tally(None if key is None else os.fsencode(key))
        producer = Producer(store, ProducerConfig(compression=compression, format=batch_format))
        max_bytes = producer.max_batch_bytes if whole else MAX_LINE_BYTES
        try:
            with producer:
                for name in names:
                    for events in _Input(name, stop).events(whole=whole, max_bytes=max_bytes):
                        tally.produce(producer, [event for event in events if event or keep_empty])
                producer.flush()
                tally.settle()
        except Exception as error:
            raise _failure(error, tally) from error
        if stop.signal is not None:
            say(f"penstock: stopped by {stop.signal.name}; what was read is flushed", err=True)
    say(f"produced {tally}")


class _Input:
    """A file, or standard input, read until its end or a signal."""

    def __init__(self, name: str, stop: StopOnSignal) -> None:
        self._name = name
        self._stop = stop
        self._is_at_end = False

    def events(self, *, whole: bool, max_bytes: int) -> Iterator[list[bytes]]:
        """Yield events as they come, some at a time; an empty list when none has come for a while.

        Raises `InvalidInput` for an event of more than `max_bytes` bytes, before it is all in memory.
        """
        pieces = list[bytes]()
        size = 0
        for block in self._blocks():
            *lines, rest = [block] if whole else block.split(b"\n")
            if lines:
                lines[0] = b"".join([*pieces, lines[0]])
                pieces, size = [], 0
            if rest:
                pieces.append(rest)
                size += len(rest)
            if size > max_bytes:
                what = "it" if whole else "a line of it"
                raise InvalidInput(f"{self._shown} cannot be produced: {what} has more than {max_bytes} bytes")
            yield lines
        if self._is_at_end:
            yield [b"".join(pieces)] if pieces or whole else []
        elif size:
            what = "only a part" if whole else "the beginning of a line"
            say(f"penstock: of {self._shown} {what} was read ({counted(size, 'byte')}): not produced", err=True)

    def _blocks(self) -> Iterator[bytes]:
        """Yield blocks as they come, and an empty one when none has come for a while."""
        try:
            with self._opened() as descriptor:
                while not self._stop.is_set():
                    if not self._stop.wait_for_input(descriptor, _LONGEST_WAIT_SECONDS):
                        yield b""
                    elif block := os.read(descriptor, _READ_BYTES):
                        yield block
                    else:
                        self._is_at_end = True
                        return
        except OSError as error:
            raise InvalidInput(f"{self._shown} cannot be read: {error.strerror}") from error

    @contextmanager
    def _opened(self) -> Iterator[int]:
        if self._name == STDIN:
            yield 0
            return
        # To open a named pipe without a writer must not block: no signal would be noticed.
        descriptor = os.open(self._name, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    @property
    def _shown(self) -> str:
        return "standard input" if self._name == STDIN else self._name


class _Tally:
    """What was read, and how much of it is durable. What is under way is bounded by the producer's own limit."""

    def __init__(self, key: bytes | None) -> None:
        self._key = key
        self._under_way = deque[tuple[WriteHandle, int, int]]()
        self._sequences = list[int]()  # the first and the last
        self._bytes = 0
        self.read = self.durable = 0

    def __str__(self) -> str:
        known = f"{counted(self.durable, 'event')}, {counted(self._bytes, 'byte')}"
        return f"{known}, sequences {self._sequences[0]} to {self._sequences[-1]}" if self._sequences else known

    def produce(self, producer: Producer, events: list[bytes]) -> None:
        """Hand events over, and look at those that are done. Raises what went wrong with any of them."""
        self.read += len(events)
        if events:
            entries = events if self._key is None else [Record(event, key=self._key) for event in events]
            self._under_way.append((producer.produce(entries), len(events), sum(map(len, events))))
        while self._under_way and self._under_way[0][0].done():
            self._settle_first()

    def settle(self) -> None:
        """Count all the rest, which is done. Raises what went wrong with the first that failed."""
        while self._under_way:
            self._settle_first()

    def settle_what_succeeded(self) -> None:
        """Count what is durable of the rest, which is done."""
        while self._under_way:
            try:
                self._settle_first()
            except Exception as error:  # noqa: BLE001  the first error was raised, and is the one to print
                _log.debug("not durable: %s", error)

    def _settle_first(self) -> None:
        handle, events, size = self._under_way.popleft()
        written: Written = handle.result()
        self.durable += events
        self._bytes += size
        self._sequences = [*self._sequences[:1], written.sequence]


def _failure(error: Exception, tally: _Tally) -> PenstockError:
    tally.settle_what_succeeded()
    kind = InvalidInput if isinstance(error, InvalidInput) else StorageError
    whole = " ".join(map(str, error.args)) if isinstance(error, PenstockError) else str(error)
    reason = " ".join(whole.split())  # on one line
    read = counted(tally.read, "event that was", "events that were")
    return kind(f"{reason}; {tally.durable} of the {read} read are known to be durable")


def _check_files(names: list[str]) -> None:
    """Refuse what cannot be read before anything is produced."""
    for name in names:
        if name == STDIN:
            if sys.stdin is None:  # its descriptor may be anything by now
                raise InvalidInput("standard input cannot be read: it is closed")
            continue
        if os.path.isdir(name):
            raise InvalidInput(f"{name} cannot be read: it is a directory")
        if not os.access(name, os.R_OK):
            why = "permission denied" if os.path.exists(name) else "there is no such file"
            raise InvalidInput(f"{name} cannot be read: {why}")
