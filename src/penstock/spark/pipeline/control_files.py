"""The files by which a pipeline's run and its planner, which is another process, talk to each other.

They are in a directory that the run creates and names in the read option `controlDirectory`. Each is seen whole or not
at all.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path

_BLOCK = "block.json"


class Sign(StrEnum):
    """A file that is there or not."""

    STOP = "stop"
    """From the run: ack what is committed, and admit nothing more."""
    STOPPED = "stopped"
    """From the planner: that is done."""
    DONE = "done"
    """From the planner: an `availableNow` query has come to its end, and everything is acked."""


@dataclass(frozen=True, slots=True)
class PlannedBlock:
    """A block that the planner handed to Spark: its sequences, its bytes, and how many batches come after it."""

    start: int
    end: int
    bytes: int
    lag: int


@dataclass(frozen=True, slots=True)
class ControlFiles:
    """The files in one directory."""

    directory: Path

    def give(self, sign: Sign) -> None:
        """Give a sign to the other process."""
        (self.directory / sign).touch()

    def has(self, sign: Sign) -> bool:
        """Whether a sign was given."""
        return (self.directory / sign).exists()

    def note_block(self, block: PlannedBlock) -> None:
        """Note, in the planner, the block that Spark gets next."""
        part = self.directory / f".{_BLOCK}.part"
        part.write_text(json.dumps(asdict(block)))
        os.replace(part, self.directory / _BLOCK)

    def read_block(self) -> PlannedBlock:
        """The block that Spark has got."""
        return PlannedBlock(**json.loads((self.directory / _BLOCK).read_text()))
