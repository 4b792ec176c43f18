"""The places that a driver reports when it reaches them, and where it can be killed."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from enum import StrEnum


class Mark(StrEnum):
    """A step of a driver that is done, in the order in which they come; those from `PLANNED` on come with each block.

    Between `PLANNED` and `WRITTEN` is the block's job.
    """

    STARTED = "started"  # Python runs, there is no JVM yet
    SESSION = "session"  # the JVM runs, there is no query yet
    CLAIMED = "claimed"  # the group is this driver's
    PLANNED = "planned"  # it is known where the block ends; for a sink that keeps no position, it is written down
    WRITTEN = "written"  # the files of rows are written; for a buffer, letters come first
    LETTERS_WRITTEN = "letters-written"
    LETTERS_COMMITTED = "letters-committed"
    ROWS_COMMITTED = "rows-committed"
    ACKED = "acked"

    @property
    def order(self) -> int:
        """Where it comes among the marks."""
        return list(Mark).index(self)


OF_BLOCKS = [mark for mark in Mark if mark.order >= Mark.PLANNED.order]


class Deed(StrEnum):
    """What is done to a driver."""

    PYTHON = "python"  # SIGKILL for Python alone: its JVM lives on for a while
    GROUP = "group"  # SIGKILL for Python and its JVM
    PAUSE = "pause"  # the driver waits at the mark, and the test stops both with SIGSTOP


def kill(deed: Deed, driver: int) -> None:
    """Kill a driver, which leads its own group."""
    if deed is Deed.PYTHON:
        os.kill(driver, signal.SIGKILL)
    else:
        os.killpg(driver, signal.SIGKILL)


@dataclass(frozen=True)
class Fate:
    """What a driver does to itself, and where: at a mark of the block that begins at a sequence."""

    deed: Deed
    mark: Mark
    first: int

    def __str__(self) -> str:
        return f"{self.deed}:{self.mark}:{self.first}"

    @classmethod
    def of(cls, text: str) -> Fate:
        deed, mark, first = text.split(":")
        return cls(Deed(deed), Mark(mark), int(first))
