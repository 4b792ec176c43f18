"""What a stream reader and a pipeline plan from: a consumer of the buffer, and the batches that it has learned of."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

from penstock.buffer import BatchDescriptor, Consumer, Waiting
from penstock.errors import InvalidInput
from penstock.spark.source.options import ReadOptions
from penstock.spark.source.partitions import PARALLEL_SIZE_REQUESTS, measured
from penstock.storage import url_of

_MAX_ENTRIES_PER_READ = 1000
_MAX_BATCHES_PER_SIZING = 4 * PARALLEL_SIZE_REQUESTS


class Planner:
    """A consumer of the buffer, and the batches it knows of, by their sequences.

    It is in one Python process on the driver, the only one that may take an epoch.
    """

    def __init__(self, options: ReadOptions, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._options = options
        self._clock = clock
        self._store = options.store
        self._consumer = Consumer(self._store, options.consumer_config(gc=True))
        self._known: dict[int, BatchDescriptor] = {}
        self.first_sequence = self._consumer.first_sequence  # that is not acked
        self._looked = clock()
        self._counts_records = options.max_records is not None
        self._has_collected = False

    @cached_property
    def buffer_id(self) -> str:
        """Which buffer it is: an offset of another one is refused."""
        return str(self._consumer.buffer_id)

    def sequence_of(self, offset: Mapping[str, Any]) -> int:
        """The sequence in an offset of Spark's. Raises `InvalidInput` where it is of another buffer."""
        found = offset.get("buffer")
        if found != self.buffer_id:
            which = "no buffer, as an earlier Penstock wrote it" if found is None else f"the buffer {found}"
            raise InvalidInput(
                f"the checkpoint is of {which}, and {self.where} is the buffer {self.buffer_id}: another one, or one "
                "that was deleted and created again. Nothing is read or acked; use a new checkpoint for this buffer"
            )
        return int(offset["sequence"])

    def offset(self, sequence: int) -> dict[str, Any]:
        """An offset for Spark to keep: where reading goes on, and in which buffer."""
        return {"buffer": self.buffer_id, "sequence": sequence}

    @property
    def next_sequence(self) -> int:
        """The sequence that the next batch will get, as of the last look at the manifest."""
        return self._consumer.next_sequence

    def look(self, *, fresh: bool = False) -> bool:
        """Look at the manifest again, if the last look is older than the poll interval. Raises `Fenced`."""
        if not fresh and self._clock() - self._looked < self._options.poll_interval:
            return False
        self._read_more()
        return True

    def ack_before(self, start: int) -> None:
        """Ack everything before a sequence. Raises `InvalidInput` if its checkpoint is not one of this queue."""
        self._check_start(start)
        if start > self.first_sequence:
            self._read_through(start - 1)
            self._consumer.ack_through(start - 1)
            for sequence in range(self.first_sequence, start):
                self._known.pop(sequence, None)
            self.first_sequence = start

    def _check_start(self, start: int) -> None:
        first = self.first_sequence
        if start < first:
            raise InvalidInput(
                f"the checkpoint goes on at sequence {start}, and {self.where} is acked up to {first - 1} "
                f"(its first entry is {first}): the checkpoint is older than the acks, and what is between "
                "is gone; was it restored, or did another query read this group?"
            )

    def collect_if_due(self) -> None:
        """Collect, if no process did for a while: a run that ends never comes to the collector's first interval."""
        if not self._has_collected:
            self._has_collected = True
            self._consumer.collect_if_due()

    def close(self) -> None:
        """Close the consumer, which ends its collector. Raises `Fenced` and `StorageError`."""
        self._consumer.close()

    def end_within(self, start: int, stop: int, budget: int | None) -> tuple[int, int]:
        """How far a block from `start` may reach, at most to `stop`; and how many bytes that are.

        The caps and the budget are for the sum of the batches; the first passes whatever it has.
        """
        options = self._options
        most_bytes = min((most for most in (options.max_bytes, budget) if most is not None), default=None)
        if options.max_batches is not None:
            stop = min(stop, start + options.max_batches)
        end, size, records = start, 0, 0
        while end < stop:
            part_end = min(stop, end + _MAX_BATCHES_PER_SIZING)
            self._read_through(part_end - 1)
            for batch in self._sized(end, part_end):
                size_then, records_then = size + (batch.size or 0), records + (batch.records or 0)
                is_full = (most_bytes is not None and size_then > most_bytes) or (
                    options.max_records is not None and records_then > options.max_records
                )
                if is_full and end > start:
                    return end, size
                end, size, records = batch.sequence + 1, size_then, records_then
        return end, size

    def batches(self, start: int, end: int) -> list[BatchDescriptor]:
        """Return the batches from `start` up to `end`, with their sizes, and ack everything before them.

        Where there are none, nothing is acked: Spark says by such a range how far it has planned, committed or not.
        """
        self._check_start(start)
        self._read_through(end - 1)  # before the ack: a block that is not of this queue acks nothing of it
        if start < end:
            self.ack_before(start)
        return self._sized(start, end)

    @property
    def where(self) -> str:
        """The manifest, as it is shown."""
        return f"{url_of(self._store)}/{self._options.manifest_path}"

    def waiting_from(self, start: int) -> tuple[Waiting, float | None]:
        """What waits from a sequence on, as of the last look; and the age of its oldest event in seconds, if known."""
        waiting = self._consumer.waiting_from(start)
        first = self._known.get(start)
        if not waiting.batches or first is None or not first.metadata:
            return waiting, None
        oldest = min(item.ingestion_time_ms for item in first.metadata)
        return waiting, max(time.time() - oldest / 1000, 0.0)

    def __enter__(self) -> Planner:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _read_through(self, last: int) -> None:
        """Learn of everything up to a sequence. Raises `InvalidInput` if the queue does not reach that far."""
        if last < self.first_sequence:
            return  # a block without events: Spark plans the first one even so
        while self._consumer.last_handed_out_sequence is None or self._consumer.last_handed_out_sequence < last:
            if not self._read_more():
                raise InvalidInput(
                    f"the checkpoint knows of sequence {last}, and the next sequence of {self.where} is "
                    f"{self.next_sequence}: it is not the buffer of the checkpoint"
                )

    def _read_more(self) -> bool:
        batches = self._consumer.next_descriptors(_MAX_ENTRIES_PER_READ)
        self._known.update((batch.sequence, batch) for batch in batches)
        self._looked = self._clock()
        return bool(batches)

    def _sized(self, start: int, end: int) -> list[BatchDescriptor]:
        """Batches that it has learned of, with their sizes."""
        batches = [self._known[sequence] for sequence in range(start, end)]
        if any(batch.size is None or (self._counts_records and batch.records is None) for batch in batches):
            batches = measured(self._store, batches, count_records=self._counts_records)
            self._known.update((batch.sequence, batch) for batch in batches)
        return batches
