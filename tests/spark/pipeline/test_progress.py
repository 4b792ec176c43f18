"""What a running pipeline says: a line at a terminal, or a log line for each block."""

from __future__ import annotations

import io
import logging
import time

import pytest

from penstock.buffer import Waiting
from penstock.spark.pipeline.block_loop import BlockReport
from penstock.spark.pipeline.progress import Progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def noted(progress: Progress, *, rows: int = 1000, size: int = 2_000_000, dead: int = 3, lag: int = 4) -> Progress:
    waiting = (lag, 100 * lag, 5_000_000 * lag, 3.0 * lag)
    progress.note(BlockReport("query-000000000000", 0, 1, rows, size, dead, 0.5, *waiting))
    return progress


def test_the_line_has_rates_lag_block_and_dead_letters() -> None:
    progress = noted(noted(Progress(Terminal())), rows=500, size=1_000_000, dead=1, lag=2)
    line = progress.line(time.monotonic() + 9.0)  # both were within the last 10 seconds
    rates, _, rest = line.partition(" MB/s, ")
    assert "rows/s, " in rates
    assert rest == "lag 2 batches, 200 events, 10.0 MB, 6 s, block 1.0 MB, 4 dead letters, 2 blocks"


def test_a_rate_is_of_the_last_ten_seconds() -> None:
    progress = noted(Progress(Terminal()))
    line = progress.line(time.monotonic() + 11.0)
    assert line.startswith("0 rows/s, 0.0 MB/s, lag 4 batches, 400 events, 20.0 MB, 12 s, block 2.0 MB, 3 dead")


def test_a_rate_is_over_the_time_that_it_runs_while_that_is_short() -> None:
    progress = noted(Progress(Terminal()))
    line = progress.line(time.monotonic() + 2.0)
    rows = int(line.split(" rows/s")[0].replace(",", ""))
    assert 400 <= rows <= 500


def test_until_the_first_block_the_line_says_what_the_run_does_and_for_how_long() -> None:
    with Progress(Terminal()) as progress:
        progress.say("claiming the group")
        assert progress.line(time.monotonic() + 3.0) == "claiming the group (3 s); nothing waits"
        progress.note_lag(Waiting(2, None, None), None)
        progress.begin_block(3_000_000)
        assert progress.line(time.monotonic() + 3.0) == "processing 3.0 MB (3 s); lag 2 batches"
        assert "rows/s" in noted(progress).line(time.monotonic())


def test_what_waits_is_noted_while_there_is_no_block() -> None:
    progress = noted(Progress(Terminal()))
    progress.note_lag(Waiting(0, 0, 0), None)
    assert ", nothing waits, block 2.0 MB" in progress.line(time.monotonic())


def test_at_a_terminal_the_line_is_drawn_over_itself_and_cleared_at_the_end() -> None:
    out = Terminal()
    with Progress(out) as progress:
        noted(progress).show()
    assert out.getvalue().startswith("\r\x1b[2K")
    assert "3 dead letters" in out.getvalue()
    assert out.getvalue().endswith("\r\x1b[2K")


def test_at_a_terminal_it_is_drawn_twice_a_second_at_most() -> None:
    out = Terminal()
    with Progress(out) as progress:
        progress.show()
        progress.show()
    assert out.getvalue().count("rows/s") == 1


def test_at_a_terminal_no_block_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "penstock.spark.pipeline"):
        progress = Progress(Terminal())
        progress.say("reading")
        noted(progress)
    assert caplog.messages == []


def test_without_a_terminal_each_step_and_each_block_is_a_log_line(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "penstock.spark.pipeline"):
        progress = Progress(io.StringIO())
        progress.say("reading")
        noted(noted(progress), lag=0)
    assert caplog.messages == [
        "reading",
        "block 1: 1000 rows, 2000000 bytes, 3 dead letters in 0.5 s; lag 4 batches, 400 events, 20.0 MB, 12 s",
        "block 2: 1000 rows, 2000000 bytes, 3 dead letters in 0.5 s; nothing waits",
    ]


def test_without_a_terminal_nothing_is_drawn() -> None:
    out = io.StringIO()
    with Progress(out) as progress:
        noted(progress).show()
    assert out.getvalue() == ""
