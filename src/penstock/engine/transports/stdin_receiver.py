"""`StdinReceiver`: the lines of standard input as a source of blocks."""

from __future__ import annotations

import os
import select
import sys
import time
from collections import deque
from collections.abc import Iterable, Sequence
from itertools import chain, islice
from typing import Any

from penstock.core import Closing
from penstock.engine.transports.contract import Filter, Receiver, check_limits, checked_filters, filtered
from penstock.engine.work_batch import WorkBatch
from penstock.errors import InvalidInput
from penstock.records import values_to_arrow

MAX_LINE_BYTES = 64 << 20
_READ_BYTES = 1 << 20


class StdinReceiver(Closing, Receiver):
    """Receives the lines of standard input, or of another stream with a descriptor, as bytes without their newline.

    A pipe keeps nothing: what was read cannot be read again by another process, so there is nothing to ack, and a kill
    loses what was read and not delivered. Within this process a line that was not committed comes again after `rewind`;
    a token is the number of a block. Empty lines are no records. The last line needs no newline.

    After the end of the input `recv` returns nothing and `exhausted` is True, which ends an engine's run. For one
    thread at a time. Raises `InvalidInput` for a stream without a descriptor, and for a line of more than 64 MiB.

    >>> import os
    >>> read_end, write_end = os.pipe()
    >>> os.write(write_end, b"one" + bytes([10]) + b"two")
    7
    >>> os.close(write_end)
    >>> with os.fdopen(read_end, "rb") as stream, StdinReceiver(stream) as receiver:
    ...     [len(receiver.recv(10)), len(receiver.recv(10)), len(receiver.recv(10)), receiver.exhausted]
    [1, 1, 0, True]
    """

    _instead_in_child = "make a StdinReceiver here, and use one of the two"

    def __init__(self, stream: Any = None, *, filters: Iterable[Filter] = ()) -> None:
        super().__init__()
        stream = sys.stdin if stream is None else stream
        try:
            self._descriptor: int = stream.fileno()
        except (AttributeError, OSError, ValueError) as error:
            raise InvalidInput(
                f"{stream!r:.100} cannot be read by its descriptor: it is closed, or has none"
            ) from error
        self._stream = stream  # kept open as long as this is used
        self._filters = checked_filters(filters)
        self._partial = bytearray()
        self._lines = deque[bytes]()
        self._uncommitted = list[tuple[int, list[bytes]]]()
        self._next_block = 0
        self._is_at_end = False

    @property
    def exhausted(self) -> bool:
        """Whether the input has ended, and all of it was handed out."""
        return self._is_at_end and not self._lines and not self._partial

    @property
    def healthy(self) -> bool:
        """Whether it is open, and of this process."""
        return not self._is_closed and not self._is_in_child

    @property
    def in_hand(self) -> bool:
        """Whether there are lines in memory that `recv` would hand out."""
        return bool(self._lines)

    def __repr__(self) -> str:
        return f"StdinReceiver({self._descriptor})"

    def recv(self, max_records: int, max_bytes: int | None = None, timeout: float = 0.1) -> WorkBatch:
        """Receive lines, and wait for the first of them. Raises `Closed` after `close`."""
        check_limits(max_records, max_bytes, timeout)
        self._check_process()
        self._check_open()
        until = time.monotonic() + timeout
        while not self._lines and not self._is_at_end:
            ready, _, _ = select.select([self._descriptor], [], [], max(until - time.monotonic(), 0))
            if ready:
                self._read()
            elif time.monotonic() >= until:
                break
        values = self._next_lines(max_records, max_bytes)
        if not values:
            return WorkBatch(())
        block = self._next_block
        self._next_block += 1
        rest, uncommitted = deque(islice(self._lines, len(values), None)), [*self._uncommitted, (block, values)]
        self._lines, self._uncommitted = rest, uncommitted  # in one line: an interrupt comes before or after both
        batch = WorkBatch(values_to_arrow(values), (block,))
        return filtered(batch, self._filters) if self._filters else batch

    def commit(self, tokens: Sequence[Any]) -> None:
        """Forget the lines of these blocks, and of those before them."""
        self._check_process()
        self._check_open()
        last = max(tokens, default=-1)
        self._uncommitted = [one for one in self._uncommitted if one[0] > last]

    def rewind(self) -> None:
        """Let everything that was not committed come again, in this process."""
        self._check_process()
        lines = deque(chain(*(values for _, values in self._uncommitted), self._lines))
        self._lines, self._uncommitted = lines, []

    def close(self) -> None:
        """Refuse everything from now on. The stream stays open, and what was read of it is gone."""
        self._is_closed = True

    def _read(self) -> None:
        data = os.read(self._descriptor, _READ_BYTES)
        if not data:
            self._is_at_end = True
        whole, newline, rest = data.rpartition(b"\n")
        if newline or not data:
            self._lines.extend(line for line in bytes(self._partial + whole).split(b"\n") if line)
            self._partial.clear()
        self._partial += rest
        if len(self._partial) > MAX_LINE_BYTES:
            raise InvalidInput(f"a line of the input has more than {MAX_LINE_BYTES} bytes: is it text?")

    def _next_lines(self, max_records: int, max_bytes: int | None) -> list[bytes]:
        values, size = list[bytes](), 0
        for line in self._lines:
            size += len(line)
            if len(values) == max_records or (values and max_bytes is not None and size > max_bytes):
                break
            values.append(line)
        return values
