"""What a running pipeline reports: one line at a terminal, or a log line for each block."""

from __future__ import annotations

import sys
import time
from collections import Counter, deque
from typing import TYPE_CHECKING, TextIO

from penstock.buffer import Waiting
from penstock.core import get_logger

if TYPE_CHECKING:
    from penstock.spark.pipeline.block_loop import BlockReport

_RATE_SECONDS = 10.0  # that a rate is the average of
_DRAW_SECONDS = 0.5
_CLEAR = "\r\x1b[2K"
_BLOCK_LINE = "block %d: %d rows, %d bytes, %d dead letters in %.1f s; %s"

_log = get_logger("penstock.spark.pipeline")


class Progress:
    """The blocks of a run so far, and the rates of the last ones."""

    def __init__(self, out: TextIO | None = None) -> None:
        self._out = out or sys.stderr
        self._is_terminal = self._out.isatty()
        self._recent: deque[tuple[float, int, int]] = deque()  # when, rows, bytes
        self._started = time.monotonic()
        self._drawn = 0.0
        self._doing = ""
        self._lag = "nothing waits"
        self._size = 0
        self.totals = Counter(rows=0, bytes=0, dead_letters=0, blocks=0)

    def __enter__(self) -> Progress:
        self._started = time.monotonic()
        return self

    def __exit__(self, *_: object) -> None:
        if self._is_terminal and self._drawn:
            self._out.write(_CLEAR)
            self._out.flush()

    def say(self, doing: str) -> None:
        """Note what the run does until its first block."""
        self._doing = doing
        if not self._is_terminal:
            _log.info("%s", doing)

    def begin_block(self, size: int) -> None:
        """Note that a block of so many bytes is being processed."""
        self._doing = f"processing {size / 1e6:,.1f} MB"

    def note(self, block: BlockReport) -> None:
        """Note a block that is done."""
        self._recent.append((time.monotonic(), block.rows, block.bytes))
        self._lag = _lag(Waiting(block.lag_batches, block.lag_events, block.lag_bytes), block.lag_seconds)
        self._size = block.bytes
        self._doing = ""
        self.totals.update(rows=block.rows, bytes=block.bytes, dead_letters=block.dead_letters, blocks=1)
        if not self._is_terminal:
            number = self.totals["blocks"]
            _log.info(
                _BLOCK_LINE, number, block.rows, block.bytes, block.dead_letters, block.seconds, self._lag
            )  # fmt: skip

    def note_lag(self, waiting: Waiting, age: float | None) -> None:
        """Note what waits, while there is no block."""
        self._lag = _lag(waiting, age)

    def show(self) -> None:
        """Draw the line, if it is time and there is a terminal."""
        now = time.monotonic()
        if not self._is_terminal or now - self._drawn < _DRAW_SECONDS:
            return
        self._drawn = now
        self._out.write(_CLEAR + self.line(now))
        self._out.flush()

    def line(self, now: float) -> str:
        """The line: rows/s and MB/s of the last seconds, what waits, the size of the last block, dead letters."""
        if not self.totals["blocks"] and self._doing:
            return f"{self._doing} ({now - self._started:.0f} s); {self._lag}"
        while self._recent and now - self._recent[0][0] > _RATE_SECONDS:
            self._recent.popleft()
        seconds = max(min(now - self._started, _RATE_SECONDS), 1e-3)
        rows, size = (sum(block[at] for block in self._recent) / seconds for at in (1, 2))
        dead_letters, blocks = self.totals["dead_letters"], self.totals["blocks"]
        return (
            f"{rows:,.0f} rows/s, {size / 1e6:,.1f} MB/s, {self._lag}, "
            f"block {self._size / 1e6:,.1f} MB, {dead_letters} dead letters, {blocks} blocks"
        )


def _lag(waiting: Waiting, age: float | None) -> str:
    """What waits, in words.

    >>> _lag(Waiting(3, 1200, 5_300_000), 12.4)
    'lag 3 batches, 1,200 events, 5.3 MB, 12 s'
    """
    if not waiting.batches:
        return "nothing waits"
    parts = [f"lag {waiting.batches:,} batches"]
    parts += [] if waiting.records is None else [f"{waiting.records:,} events"]
    parts += [] if waiting.size is None else [f"{waiting.size / 1e6:,.1f} MB"]
    parts += [] if age is None else [f"{age:,.0f} s"]
    return ", ".join(parts)
