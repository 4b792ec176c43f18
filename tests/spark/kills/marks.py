"""The places that a driver reports when it reaches them, and where it can be killed."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from enum import StrEnum


class Mark(StrEnum):
    """A step of a driver, in the order in which they come; those from `PLANNED` on come with each block."""

    STARTED = "started"  # Python runs, there is no JVM yet
    SESSION = "session"  # the JVM runs, there is no query yet
    ASKED = "asked"  # in the planner: the block is in the commit log, and not acked
    ACKED = "acked"  # in the planner: right after the ack
    PLANNED = "planned"  # and handed to the run
    READ = "read"  # executors have read and processed it
    LETTERS_STAGED = "letters-staged"
    LETTERS_COMMITTED = "letters-committed"
    ROWS_STAGED = "rows-staged"
    ROWS_COMMITTED = "rows-committed"  # Spark's commit log comes next

    @property
    def order(self) -> int:
        """Where it comes among the marks."""
        return list(Mark).index(self)


IN_PLANNER = (Mark.ASKED, Mark.ACKED)


class Deed(StrEnum):
    """What is done to a driver."""

    PYTHON = "python"  # SIGKILL for Python alone: its JVM lives on for a while
    GROUP = "group"  # SIGKILL for Python and its JVM
    PAUSE = "pause"  # SIGSTOP for both


def do(deed: Deed, driver: int) -> None:
    """Do something to a driver, which leads its own group."""
    if deed is Deed.PYTHON:
        os.kill(driver, signal.SIGKILL)
    elif deed is Deed.GROUP:
        os.killpg(driver, signal.SIGKILL)
    else:
        os.killpg(driver, signal.SIGSTOP)


@dataclass(frozen=True)
class Fate:
    """What a driver does to itself, and where: at a mark of a batch."""

    deed: Deed
    mark: Mark
    batch: int

    def __str__(self) -> str:
        return f"{self.deed}:{self.mark}:{self.batch}"

    @classmethod
    def of(cls, text: str) -> Fate:
        deed, mark, batch = text.split(":")
        return cls(Deed(deed), Mark(mark), int(batch))
