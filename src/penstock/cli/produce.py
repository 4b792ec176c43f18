"""`penstock produce`: put lines, or whole files, into a buffer."""

from __future__ import annotations

import logging
import os
import select
import signal
import sys
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Annotated

import typer

from penstock.buffer import Compression, Producer, ProducerConfig, WriteHandle, Written
from penstock.cli.output import say
from penstock.cli.places import BatchFormatOption, StorageOptions, Where, open_with
from penstock.core import get_logger
from penstock.errors import InvalidInput, PenstockError, StorageError
from penstock.records import Record

STDIN = "-"
LONGEST_LINE = 64 << 20
_BLOCK = 1 << 20
_LOOK_AGAIN = 0.5  # at what is under way, while no input comes
_SIGNALS = (signal.SIGINT, signal.SIGTERM)

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

    The input may be endless. Ctrl-C or SIGTERM ends it: what was read is flushed, but for an unfinished line; a second
    one ends it at once. Whatever happens, it says how many events are known to be durable.
    """
    store = open_with(where, storage_options)
    names = files or [STDIN]
    _check_files(names)
    with Stop() as stop, not_logged("penstock.buffer.producer.producer"):
        tally = _Tally(None if key is None else os.fsencode(key))
        producer = Producer(store, ProducerConfig(compression=compression, format=batch_format))
        most = producer.max_batch_bytes if whole else LONGEST_LINE
        try:
            with producer:
                for name in names:
                    for events in _Input(name, stop).events(whole=whole, most=most):
                        tally.produce(producer, [event for event in events if event or keep_empty])
                producer.flush()
                tally.settle()
        except Exception as error:
            raise _failure(error, tally) from error
        if stop.signal is not None:
            say(f"penstock: stopped by {stop.signal.name}; what was read is flushed", err=True)
    say(f"produced {tally}")


@contextmanager
def not_logged(name: str) -> Iterator[None]:
    """Keep a room's log from the terminal, where the command says the same itself; a configured log still gets it."""
    handler = logging.NullHandler()
    logging.getLogger(name).addHandler(handler)
    try:
        yield
    finally:
        logging.getLogger(name).removeHandler(handler)


class Stop:
    """Whether Ctrl-C or SIGTERM came. It interrupts nothing but `wait`; a second signal ends the process at once.

    By a pipe, and not by an exception or a `threading.Event`: an exception would come in the middle of anything, and
    an event set by a handler can meet its own lock, held by the code that the signal interrupted. The interpreter
    itself writes to the pipe, at once: a handler has to wait until the main thread comes out of whatever it waits in.
    """

    def __init__(self) -> None:
        self.signal: signal.Signals | None = None

    def __enter__(self) -> Stop:
        self._told, self._tell = os.pipe()
        os.set_blocking(self._tell, False)
        self._woken_before = signal.set_wakeup_fd(self._tell)
        self._before = {number: signal.signal(number, self._note) for number in _SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._woken_before)
        os.close(self._told)
        os.close(self._tell)

    def wait(self, seconds: float | None, input: int | None = None) -> bool:  # noqa: A002  it is what one waits for
        """Wait until there is something to read from a descriptor, and say whether; not longer than told, or a signal.

        A signal comes first, however much input there is.
        """
        awaited = [self._told] if input is None else [self._told, input]
        ready, _, _ = select.select(awaited, [], [], seconds)
        return input in ready and self._told not in ready

    def _note(self, number: int, _: FrameType | None) -> None:
        for one in _SIGNALS:
            signal.signal(one, signal.SIG_DFL)
        self.signal = signal.Signals(number)


class _Input:
    """A file, or standard input, read until its end or a signal."""

    def __init__(self, name: str, stop: Stop) -> None:
        self._name = name
        self._stop = stop
        self._is_at_end = False

    def events(self, *, whole: bool, most: int) -> Iterator[list[bytes]]:
        """Yield events as they come, some at a time; none where it is only time to look at something else.

        Raises `InvalidInput` for an event of more than `most` bytes, before it is all in memory.
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
            if size > most:
                what = "it" if whole else "a line of it"
                raise InvalidInput(f"{self._shown} cannot be produced: {what} has more than {most} bytes")
            yield lines
        if self._is_at_end:
            yield [b"".join(pieces)] if pieces or whole else []
        elif size:
            what = "only a part" if whole else "the beginning of a line"
            say(f"penstock: of {self._shown} {what} was read ({size} bytes): not produced", err=True)

    def _blocks(self) -> Iterator[bytes]:
        """Yield blocks as they come, and an empty one when none has come for a while."""
        try:
            with self._opened() as descriptor:
                while self._stop.signal is None:
                    if not self._stop.wait(_LOOK_AGAIN, descriptor):
                        yield b""
                    elif block := os.read(descriptor, _BLOCK):
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
        # Opening a named pipe that nobody writes to yet must not wait where no signal is noticed.
        descriptor = os.open(self._name, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    @property
    def _shown(self) -> str:
        return "standard input" if self._name == STDIN else self._name


class _Tally:
    """What was read, and how much of it is durable. What is under way is bounded by the producer's own room."""

    def __init__(self, key: bytes | None) -> None:
        self._key = key
        self._under_way = deque[tuple[WriteHandle, int, int]]()
        self._sequences = list[int]()  # the first and the last
        self._bytes = 0
        self.read = self.durable = 0

    def __str__(self) -> str:
        known = f"{self.durable} events, {self._bytes} bytes"
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
            except Exception as error:  # noqa: BLE001  one of them was raised already, and that is what is said
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
    said = " ".join(whole.split())  # of what comes in several lines
    return kind(f"{said}; {tally.durable} of the {tally.read} events that were read are known to be durable")


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
            raise InvalidInput(f"{name} cannot be read: {_why_not(name)}")


def _why_not(name: str) -> str:
    return "permission denied" if os.path.exists(name) else "there is no such file"
