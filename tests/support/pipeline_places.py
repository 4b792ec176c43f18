"""A pipeline's places in one directory, and what is in them: read without Spark."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds

from penstock.spark import Pipeline
from tests.support.backlogs import Backlog, Entry


@dataclass(frozen=True)
class Places:
    """Where the events of a pipeline come from, and where its checkpoint and its tables are."""

    root: Path

    @property
    def events(self) -> Path:
        return self.root / "events"

    @property
    def checkpoint(self) -> Path:
        return self.root / "checkpoint"

    @property
    def table(self) -> Path:
        return self.root / "table"

    @property
    def dead_letters(self) -> Path:
        return self.root / "dead-letters"

    @property
    def backlog(self) -> Backlog:
        return Backlog(str(self.events))

    def put(self, *batches: Sequence[Entry]) -> None:
        """Append batches of events."""
        self.backlog.put(*batches)

    def queued(self) -> list[int]:
        """The sequences that are not acked."""
        return self.backlog.sequences()

    def object_of(self, sequence: int) -> Path:
        """The file of a batch."""
        [location] = [entry.location for entry in self.backlog.entries() if entry.sequence == sequence]
        return self.events / location

    def pipeline(self, **options: object) -> Pipeline:
        return Pipeline(self.events, self.checkpoint, options=options)

    def rows(self) -> list[dict[str, Any]]:
        """The rows of the table, without the block that they are of."""
        return sorted((_without_block(row) for row in read(self.table).to_pylist()), key=str)

    def letters(self) -> list[dict[str, Any]]:
        """The dead letters, without their block, in the order of their payloads."""
        return sorted((_without_block(row) for row in read(self.dead_letters).to_pylist()), key=str)


def read(table: Path) -> pa.Table:
    """A table of Parquet, for a plain reader; one of no columns where there is none."""
    if not table.is_dir():
        return pa.table({})
    return ds.dataset(table, format="parquet", partitioning="hive").to_table()


def _without_block(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name != "block"}
