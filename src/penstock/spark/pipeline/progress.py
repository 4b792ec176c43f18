"""What a running pipeline reports: one line at a terminal, or a log line for each block."""

from __future__ import annotations

import sys
import time
from collections import Counter, deque
from typing import TextIO

from penstock.core import get_logger

_RATE_SECONDS = 10.0  # that a rate is the average of
_DRAW_SECONDS = 0.5
_CLEAR = "\r\x1b[2K"
_BLOCK_LINE = "block %d: %d rows, %d bytes, %d dead letters in %.1f s; %d batches are left"

_log = get_logger("penstock.spark.pipeline")


class Progress:
    """The blocks of a run so far, and the rates of the last ones."""

    def __init__(self, out: TextIO | None = None) -> None:
        self._out = out or sys.stderr
        self._is_terminal = self._out.isatty()
        self._recent: deque[tuple[float, int, int]] = deque()  # when, rows, bytes
        self._started = time.monotonic()
        self._drawn = 0.0
        self._lag = self._size = 0
        self.totals = Counter(rows=0, bytes=0, dead_letters=0, blocks=0)

    def __enter__(self) -> Progress:
        self._started = time.monotonic()
        return self

    def __exit__(self, *_: object) -> None:
        if self._is_terminal and self._drawn:
            self._out.write(_CLEAR)
            self._out.flush()

    def note(self, *, rows: int, size: int, dead: int, lag: int, seconds: float) -> None:
        """Note a block."""
        self._recent.append((time.monotonic(), rows, size))
        self._lag, self._size = lag, size
        self.totals.update(rows=rows, bytes=size, dead_letters=dead, blocks=1)
        if not self._is_terminal:
            _log.info(_BLOCK_LINE, self.totals["blocks"], rows, size, dead, seconds, lag)

    def show(self) -> None:
        """Draw the line, if it is time and there is a terminal."""
        now = time.monotonic()
        if not self._is_terminal or now - self._drawn < _DRAW_SECONDS:
            return
        self._drawn = now
        self._out.write(_CLEAR + self.line(now))
        self._out.flush()

    def line(self, now: float) -> str:
        """The line: rows/s and MB/s of the last seconds, the lag, the size of the last block, dead letters."""
        while self._recent and now - self._recent[0][0] > _RATE_SECONDS:
            self._recent.popleft()
        seconds = max(min(now - self._started, _RATE_SECONDS), 1e-3)
        rows, size = (sum(block[at] for block in self._recent) / seconds for at in (1, 2))
        dead_letters, blocks = self.totals["dead_letters"], self.totals["blocks"]
        return (
            f"{rows:,.0f} rows/s, {size / 1e6:,.1f} MB/s, lag {self._lag} batches, "
            f"block {self._size / 1e6:,.1f} MB, {dead_letters} dead letters, {blocks} blocks"
        )
