"""What a running pipeline says: a line at a terminal, or a log line for each block."""

from __future__ import annotations

import io
import logging
import time

import pytest

from penstock.spark.pipeline.progress import Progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def noted(progress: Progress, *, rows: int = 1000, size: int = 2_000_000, dead: int = 3, lag: int = 4) -> Progress:
    progress.note(rows=rows, size=size, dead=dead, lag=lag, seconds=0.5)
    return progress


def test_the_line_has_rates_lag_block_and_dead_letters() -> None:
    progress = noted(noted(Progress(Terminal())), rows=500, size=1_000_000, dead=1, lag=2)
    line = progress.line(time.monotonic() + 9.0)  # both were within the last 10 seconds
    rates, lag, block, dead, blocks = line.split(", ", 1)[1].rsplit(", ", 4)
    assert rates.endswith(" MB/s")
    assert (lag, block, dead, blocks) == ("lag 2 batches", "block 1.0 MB", "4 dead letters", "2 blocks")


def test_a_rate_is_of_the_last_ten_seconds() -> None:
    progress = noted(Progress(Terminal()))
    assert progress.line(time.monotonic() + 11.0).startswith("0 rows/s, 0.0 MB/s, lag 4 batches, block 2.0 MB, 3 dead")


def test_a_rate_is_over_the_time_that_it_runs_while_that_is_short() -> None:
    progress = noted(Progress(Terminal()))
    line = progress.line(time.monotonic() + 2.0)
    rows = int(line.split(" rows/s")[0].replace(",", ""))
    assert 400 <= rows <= 500


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
        noted(Progress(Terminal()))
    assert caplog.messages == []


def test_without_a_terminal_each_block_is_a_log_line(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "penstock.spark.pipeline"):
        noted(noted(Progress(io.StringIO())))
    assert caplog.messages == [
        "block 1: 1000 rows, 2000000 bytes, 3 dead letters in 0.5 s; 4 batches are left",
        "block 2: 1000 rows, 2000000 bytes, 3 dead letters in 0.5 s; 4 batches are left",
    ]


def test_without_a_terminal_nothing_is_drawn() -> None:
    out = io.StringIO()
    with Progress(out) as progress:
        noted(progress).show()
    assert out.getvalue() == ""
