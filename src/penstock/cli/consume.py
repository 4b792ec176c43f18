"""`penstock consume`: print the events of a buffer, and ack what was printed."""

from __future__ import annotations

import base64
import sys
from collections import deque
from collections.abc import Iterator
from typing import Annotated, BinaryIO, cast

import msgspec
import typer

from penstock.buffer import (
    BatchDescriptor,
    BufferQueue,
    ConsumedBatch,
    Consumer,
    ConsumerConfig,
    FetchHandle,
)
from penstock.cli.output import counted, escaped_json, escaped_line, give_up_stdout, not_printed, say
from penstock.cli.places import (
    DEFAULTS,
    MANIFEST_PATH,
    ManifestPath,
    StorageOptions,
    Where,
    beginning,
    has_manifest,
    open_with,
)
from penstock.core import Backoff, StopOnSignal
from penstock.errors import NotFound, PenstockError, StorageError
from penstock.records import Record, records_from_arrow
from penstock.storage import ObjectStore

_ENTRIES_PER_READ = 256
_FIRST_POLL_SECONDS, _LONGEST_POLL_SECONDS = 0.01, 0.5  # while there is no new batch


def consume_command(
    where: Where,
    max_events: Annotated[int | None, typer.Option("--max", "-n", min=1, help="How many events to print.")] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Wait for more, until Ctrl-C or SIGTERM.")] = False,
    no_ack: Annotated[bool, typer.Option("--no-ack", help="Only read: ack nothing, and fence no consumer.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print a JSON object for each event, with its place, key and headers.")
    ] = False,
    group: Annotated[str, typer.Option(help="The group of readers to read for.")] = DEFAULTS.group,
    start: Annotated[
        str, typer.Option(help="Where a new group begins: earliest, latest, or a sequence that is there.")
    ] = "earliest",
    path: ManifestPath = MANIFEST_PATH,
    storage_options: StorageOptions = None,
) -> None:
    """Print the events of a buffer, one a line, and ack them.

    This takes the group over: its consumer, if there is one, is FENCED and stops. To read without that, use --no-ack;
    or a --group of its own, which is created, and for which the buffer keeps what it has not acked.

    A batch is acked when all of it is written to standard output and flushed; if this command is killed before, the
    batch comes again. To print only some events, use -n: events that `| head` does not show may have been written to
    the pipe, and acked.

    On a terminal, control characters and bytes that are not UTF-8 are shown as escapes, one event a line. Into a file
    or a pipe the bytes are written as they are.

    With --json, bytes that are not UTF-8 are in `value_base64` (`key_base64`) instead of `value` (`key`), and the
    timestamp is in milliseconds since 1970.
    """
    # With another manifest path no collector runs: where its data lies is not known here.
    config = ConsumerConfig(manifest_path=path, group=group, start=beginning(start), gc=path == MANIFEST_PATH)
    store = open_with(where, storage_options)
    if not follow and not has_manifest(store, path):
        say(f"penstock: {where} is empty: there is no manifest", err=True)
        return
    if sys.stdout is None:
        raise StorageError("standard output cannot be written: it is closed")
    # Not `sys.stdout.buffer`: with PYTHONUNBUFFERED that is a raw file, whose writes a signal may cut short.
    # What a close logs of acks that may be lost does not hold here: each is written before the next batch.
    with (
        open(sys.stdout.fileno(), "wb", closefd=False) as out,
        StopOnSignal() as stop,
        not_printed("penstock.buffer.consumer.consumer"),
    ):
        printer = _Printer(out, max_events, as_json=as_json)
        if no_ack:
            printer.print_all(_batches(_Looking(store, config), stop, follow=follow), ack=False)
            return
        with Consumer(store, config) as consumer:
            printer.print_all(_batches(consumer, stop, follow=follow), ack=True)


class _Printer:
    """Writes batches, up to so many events, and acks those that are written whole."""

    def __init__(self, out: BinaryIO, max_events: int | None, *, as_json: bool) -> None:
        self._out = out
        self._remaining = max_events
        self._as_json = as_json
        self._is_terminal = out.isatty()

    def print_all(self, batches: Iterator[ConsumedBatch], *, ack: bool) -> None:
        """Print until there are no more batches, or enough events, or the reader of the pipe is gone."""
        for batch in batches:
            rows = batch.arrow.num_rows
            printed = rows if self._remaining is None else min(rows, self._remaining)
            if not self._print(batch, printed):
                return
            if ack and printed == rows:
                _ack(batch)
            elif ack:
                some = f"{printed} of the {counted(rows, 'event')} of batch {batch.sequence} are printed"
                say(f"penstock: {some}: it is not acked, and comes again", err=True)
            if self._remaining is not None:
                self._remaining -= printed
                if not self._remaining:
                    return

    def _print(self, batch: ConsumedBatch, rows: int) -> bool:
        """Write and flush some rows of a batch. False: the reader of the pipe is gone."""
        try:
            self._out.writelines(self._lines(batch, rows))
            self._out.flush()
        except BrokenPipeError:
            give_up_stdout()
            return False
        except OSError as error:
            give_up_stdout()
            raise StorageError(
                f"standard output cannot be written: {error.strerror}; batch {batch.sequence} is not acked"
            ) from error
        return True

    def _lines(self, batch: ConsumedBatch, rows: int) -> Iterator[bytes]:
        some = batch.arrow.slice(0, rows)
        if not self._as_json:
            values = cast("list[bytes]", some.column("value").to_pylist())
            return ((escaped_line(value) if self._is_terminal else value) + b"\n" for value in values)
        records = enumerate(records_from_arrow(some))
        return (_json_line(_as_json(batch.sequence, index, record)) for index, record in records)


def _ack(batch: ConsumedBatch) -> None:
    try:
        batch.ack()
    except PenstockError:
        say(f"penstock: batch {batch.sequence} is printed, and may not be acked", err=True)
        raise


class _Looking:
    """Hands out the batches of a buffer as a consumer does, but takes no epoch: it fences no other, and cannot ack."""

    def __init__(self, store: ObjectStore, config: ConsumerConfig) -> None:
        self._queue = BufferQueue(store, config.manifest_path, "consumer", group=config.group)
        self._handle = FetchHandle(store)
        self._waiting = deque[BatchDescriptor]()
        self._next = 0

    def next_batch(self) -> ConsumedBatch | None:
        """Fetch the next entry; None where there is none yet. Raises as `Consumer.next_batch` does."""
        if not self._waiting:
            self._read()
        while self._waiting:
            entry = self._waiting.popleft()
            self._next = entry.sequence + 1
            try:
                return self._handle.fetch(entry)
            except NotFound:
                # A consumer may have acked it since the manifest was read, and a collector taken it.
                if self._read() <= entry.sequence:
                    raise
        return None

    def _read(self) -> int:
        """Learn of the next entries; return the first sequence that is not acked."""
        view = self._queue.peek()
        start = max(self._next, view.first_sequence)
        self._waiting = deque(view.entries(start, start + _ENTRIES_PER_READ))
        return view.first_sequence


def _batches(source: Consumer | _Looking, stop: StopOnSignal, *, follow: bool) -> Iterator[ConsumedBatch]:
    backoff = Backoff(_FIRST_POLL_SECONDS, _LONGEST_POLL_SECONDS, sleep=stop.wait)
    while not stop.is_set():
        batch = source.next_batch()
        if batch is not None:
            if not stop.is_set():
                yield batch
            backoff.reset()
        elif not follow:
            return
        else:
            backoff.wait()


def _json_line(event: dict[str, object]) -> bytes:
    line = msgspec.json.encode(event) + b"\n"
    return line if line.isascii() and b"\x7f" not in line else escaped_json(line.decode()).encode()


def _as_json(sequence: int, index: int, record: Record) -> dict[str, object]:
    headers = record.headers
    return {
        "sequence": sequence,
        "index": index,
        **_text_or_base64("value", record.value),
        **_text_or_base64("key", record.key),
        "headers": None if headers is None else [{"key": name, **_text_or_base64("value", v)} for name, v in headers],
        "timestamp": record.timestamp_ms,
    }


def _text_or_base64(name: str, value: bytes | None) -> dict[str, object]:
    try:
        return {name: None if value is None else value.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(value or b"").decode()}
