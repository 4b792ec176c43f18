"""From a run of batches to Spark's input partitions, and the sizes that this takes."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from penstock.buffer import BatchDescriptor, largest_object, record_count
from penstock.errors import CorruptData, InvalidInput, NotFound
from penstock.spark.versions import InputPartition
from penstock.storage import ObjectStore, get_at_most

PARALLEL_SIZE_REQUESTS = 16
_MIN_PARTITION_BYTES = 256 << 10  # below that a task costs more than it saves


@dataclass(frozen=True, slots=True)
class Piece:
    """A batch, or one of several equal ranges of its rows."""

    batch: BatchDescriptor
    part: int = 0
    of: int = 1

    def rows(self, count: int) -> tuple[int, int]:
        """Where the piece starts and ends in a batch of so many rows."""
        return count * self.part // self.of, count * (self.part + 1) // self.of


class BatchRun(InputPartition):
    """What one task reads: pieces, in order."""

    def __init__(self, pieces: Sequence[Piece]) -> None:
        super().__init__(None)
        self.pieces = tuple(pieces)


def plan_partitions(
    batches: Sequence[BatchDescriptor], target_bytes: int, cores: int, *, may_cut: bool = True
) -> list[InputPartition]:
    """Cut a run of batches, whose sizes are known, into partitions of about that size, and enough for all cores.

    A much larger batch is cut into ranges of rows, if it may be; each of these tasks fetches all of it.
    """
    total = sum(batch.size or 0 for batch in batches)
    size = max(min(target_bytes, -(-total // max(cores, 1))), min(_MIN_PARTITION_BYTES, target_bytes))
    runs: list[InputPartition] = []
    pieces: list[Piece] = []
    held = 0
    for batch in batches:
        of = max(round((batch.size or 0) / size), 1) if may_cut else 1
        for part in range(of):
            if pieces and held + (batch.size or 0) // of > size * 5 // 4:
                runs.append(BatchRun(pieces))
                pieces, held = [], 0
            pieces.append(Piece(batch, part, of))
            held += (batch.size or 0) // of
    if pieces:
        runs.append(BatchRun(pieces))
    return runs


def measured(store: ObjectStore, batches: Sequence[BatchDescriptor], *, count_records: bool) -> list[BatchDescriptor]:
    """The batches with their sizes, and if asked with how many records they have, from the store where they lack one.

    A manifest of version 1 has neither. A batch that is gone or broken counts as empty: reading it reports the error.
    """

    def measure(batch: BatchDescriptor) -> BatchDescriptor:
        if batch.size is not None and not (count_records and batch.records is None):
            return batch
        try:
            if not count_records:
                return replace(batch, size=store.head(batch.location).size)
            data = get_at_most(store, batch.location, largest_object(batch)).data
            return replace(batch, size=len(data), records=record_count(data))
        except (NotFound, CorruptData, InvalidInput):
            return replace(batch, size=0, records=0)

    with ThreadPoolExecutor(PARALLEL_SIZE_REQUESTS, "penstock-sizes") as pool:
        return list(pool.map(measure, batches))
