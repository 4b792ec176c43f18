"""What a producer does with a batch that is sealed: write its data object, and append the object to the queue."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence

from penstock.buffer.config import ProducerConfig
from penstock.buffer.descriptors import NewEntry
from penstock.buffer.format.batch import BatchFormat, Compression
from penstock.buffer.locations import Names
from penstock.buffer.manifest.queue import BufferQueue
from penstock.buffer.manifest.state import Attempts, Unwritten
from penstock.buffer.producer.pending_batch import PendingBatch
from penstock.buffer.producer.write_handle import Written
from penstock.errors import OutcomeUnknown
from penstock.storage import ObjectStore, url_of


class BatchShipper:
    """Writes batches into one buffer. Writing is safe from several threads; `enqueue` is for one at a time.

    `uptime` is the clock of the deadlines: one that runs during suspend.
    """

    def __init__(
        self,
        store: ObjectStore,
        config: ProducerConfig,
        queue: BufferQueue,
        names: Names,
        uptime: Callable[[], float],
    ) -> None:
        self._store = store
        self._config = config
        self._queue = queue
        self._names = names
        self._uptime = uptime
        self._owns_prefix = False
        self._is_version_known = False  # of a manifest that is there: another process may yet create one that is not
        self._claiming = threading.Lock()

    @property
    def conflict_rate(self) -> float:
        """Percent of the manifest writes that lost a compare-and-set."""
        return self._queue.conflict_rate

    @property
    def batch_format(self) -> BatchFormat:
        """How batches are written now. An upgrade is noticed at the next enqueue, and batches change then."""
        return self._config.batch_format(self._queue.batch_format)

    @property
    def can_hold_keys(self) -> bool:
        """Whether batches are known to be in a format with keys. If not, entries without keys have their own batches.

        A manifest that turns out to be version 1 refuses a batch with keys as a whole. Nothing else must be in it.
        """
        is_known = self._is_version_known or self._config.format is not None
        return is_known and self.batch_format is BatchFormat.ARROW

    def look_at_owner(self) -> None:
        """Look whose the prefix is. Raises `InvalidInput` where it is another buffer's."""
        self._is_version_known = self._queue.own_prefix(self._config.data_path_prefix, claim=False)

    def encode(self, batch: PendingBatch) -> None:
        """Encode a batch, before the first one claim the prefix, and set the deadline of the batch."""
        # Before anything is written: the collector counts on it that nothing is enqueued later than this says.
        batch.deadline = self._uptime() + self._config.enqueue_deadline
        if not self._owns_prefix:
            self._own_prefix()
        batch.encode(Compression(self._config.compression), self.batch_format, self._config.max_batch_bytes)

    def put(self, batch: PendingBatch, floor: int | None = None) -> None:
        """Write the data object of a batch that is encoded, under a new name above the collector's floor."""
        batch.location = self._names.location(
            self._config.data_path_prefix, self._queue.floor if floor is None else floor
        )
        self._store.put(batch.location, batch.data)

    def enqueue(self, run: Sequence[PendingBatch]) -> Iterator[tuple[PendingBatch, Written | OutcomeUnknown]]:
        """Append batches in one write of the manifest. Yields what became of each, as soon as it is known.

        Raises what went wrong: then none of the batches that are left is known to be enqueued.
        """
        batches = {batch.location: batch for batch in run}
        attempts: Attempts | None = None
        while True:
            done = self._queue.enqueue([batch.entry() for batch in run], attempts=attempts)
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
                self._owns_prefix = self._queue.own_prefix(self._config.data_path_prefix, claim=True)
                self._is_version_known = True

    def _too_late(self, entry: NewEntry) -> OutcomeUnknown:
        return OutcomeUnknown(
            f"{entry.location} was not enqueued in {url_of(self._store)}/{self._config.manifest_path} within "
            f"enqueue_deadline = {self._config.enqueue_deadline} s; it is not known to be enqueued"
        )
