"""What a producer does with a batch that is sealed: write its data object, and append the object to the queue."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from penstock.buffer.config import ProducerConfig
from penstock.buffer.descriptors import NewEntry
from penstock.buffer.format.batch import BatchFormat, Compression
from penstock.buffer.locations import Names
from penstock.buffer.manifest.attempts import Attempts
from penstock.buffer.manifest.queue import BufferQueue
from penstock.buffer.manifest.state import Unwritten
from penstock.buffer.producer.pending_batch import PendingBatch
from penstock.buffer.producer.write_handle import Written
from penstock.errors import OutcomeUnknown
from penstock.storage import ObjectStore, url_of


@dataclass(eq=False)
class BatchShipper:
    """Writes batches into one buffer. Writing is safe from several threads; `enqueue` is for one at a time.

    `uptime` is the clock of the deadlines: one that runs during suspend.
    """

    store: ObjectStore
    config: ProducerConfig
    queue: BufferQueue
    names: Names
    uptime: Callable[[], float]
    _owns_prefix: bool = False
    _is_version_known: bool = False  # of a manifest that is there: another process may yet create one that is not
    _claiming: threading.Lock = field(default_factory=threading.Lock)

    @property
    def batch_format(self) -> BatchFormat:
        """How batches are written now. An upgrade is noticed at the next enqueue, and batches change then."""
        return self.config.batch_format(self.queue.batch_format)

    @property
    def can_hold_keys(self) -> bool:
        """Whether batches are known to be in a format with keys. If not, entries without keys have their own batches.

        A manifest that turns out to be version 1 refuses a batch with keys as a whole. Nothing else must be in it.
        """
        is_known = self._is_version_known or self.config.format is not None
        return is_known and self.batch_format is BatchFormat.ARROW

    def look_at_owner(self) -> None:
        """Read which buffer the prefix belongs to. Raises `InvalidInput` where it is another one."""
        self._is_version_known = self.queue.own_prefix(self.config.data_path_prefix, claim=False)

    def encode(self, batch: PendingBatch) -> None:
        """Encode a batch, before the first one claim the prefix, and set the deadline of the batch."""
        # Before anything is written: the collector counts on it that nothing is enqueued later than this says.
        batch.deadline = self.uptime() + self.config.enqueue_deadline
        if not self._owns_prefix:
            self._own_prefix()
        batch.encode(Compression(self.config.compression), self.batch_format, self.config.max_batch_bytes)

    def put(self, batch: PendingBatch, floor: int | None = None) -> None:
        """Write the data object of a batch that is encoded, under a new name above the collector's floor."""
        floor = self.queue.floor if floor is None else floor
        batch.location = self.names.location(self.config.data_path_prefix, floor)
        self.store.put(batch.location, batch.data)

    def enqueue(self, run: Sequence[PendingBatch]) -> Iterator[tuple[PendingBatch, Written | OutcomeUnknown]]:
        """Append batches in one write of the manifest. Yields what became of each, as soon as it is known.

        Raises what went wrong: then none of the batches without an outcome is known to be enqueued.
        """
        batches = {batch.location: batch for batch in run}
        attempts: Attempts | None = None
        while True:
            done = self.queue.enqueue([batch.entry() for batch in run], attempts=attempts)
            if not isinstance(done, Unwritten):
                break
            attempts = done.attempts
            for entry in done.late:
                yield batches[entry.location], self._too_late(entry)
            late = {entry.location for entry in done.late}
            run = [batch for batch in run if batch.location not in late]
            for entry in done.closed:
                batch = batches[entry.location]
                self.put(batch, done.floor)
                batches[batch.location] = batch
        for location, sequence in done.sequences.items():
            yield batches[location], Written(sequence, location)

    def _own_prefix(self) -> None:
        with self._claiming:  # one writer claims, and the others find that it has
            if not self._owns_prefix:
                self._owns_prefix = self.queue.own_prefix(self.config.data_path_prefix, claim=True)
                self._is_version_known = True

    def _too_late(self, entry: NewEntry) -> OutcomeUnknown:
        return OutcomeUnknown(
            f"{entry.location} was not enqueued in {url_of(self.store)}/{self.config.manifest_path} within "
            f"enqueue_deadline = {self.config.enqueue_deadline} s; it is not known to be enqueued"
        )
