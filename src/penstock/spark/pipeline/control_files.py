"""The files by which a pipeline's run and its planner, which is another process, talk to each other.

They are in a directory that the run makes and names in the read option `controlDirectory`. Each file is seen whole or
not at all.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

_STOP, _STOPPED, _DONE, _BLOCK = "stop", "stopped", "done", "block.json"


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

    # Written by the run, read by the planner.

    def ask_to_stop(self) -> None:
        """Ask the planner to ack what is committed, and to admit nothing more."""
        (self.directory / _STOP).touch()

    @property
    def is_stop_asked(self) -> bool:
        """Whether the run has asked for a stop."""
        return (self.directory / _STOP).exists()

    # Written by the planner, read by the run.

    def note_stopped(self) -> None:
        """Note that everything committed is acked, and that nothing more comes because of a stop."""
        self._write(_STOPPED, "")

    @property
    def is_stopped(self) -> bool:
        """Whether the planner has stopped."""
        return (self.directory / _STOPPED).exists()

    def note_done(self) -> None:
        """Note that an `availableNow` query has come to its end, and everything is acked."""
        self._write(_DONE, "")

    @property
    def is_done(self) -> bool:
        """Whether an `availableNow` query has come to its end."""
        return (self.directory / _DONE).exists()

    def note_block(self, block: PlannedBlock) -> None:
        """Note the block that Spark gets next."""
        self._write(_BLOCK, json.dumps(asdict(block)))

    def read_block(self) -> PlannedBlock:
        """The block that Spark has got."""
        return PlannedBlock(**json.loads((self.directory / _BLOCK).read_text()))

    def _write(self, name: str, text: str) -> None:
        part = self.directory / f".{name}.part"
        part.write_text(text)
        os.replace(part, self.directory / name)
