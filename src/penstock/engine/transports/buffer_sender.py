"""`BufferSender`: a buffer as a place where records go."""

from __future__ import annotations

import os
from collections.abc import Iterable

from penstock.buffer import FLUSH_SIZE_BYTES, Producer, ProducerConfig, WriteHandle
from penstock.core import Closing, get_logger
from penstock.engine.work_batch import WorkBatch
from penstock.records import Record, rows_of_size
from penstock.storage import ObjectStore

_MAX_BYTES_PER_OBJECT = FLUSH_SIZE_BYTES

_log = get_logger(__name__)


class BufferSender(Closing):
    """Sends records into a buffer, and returns when everything is durable and in its queue.

    A `WorkBatch` goes over in columns, without an object for a record; one with columns of its own is sent as JSON, a
    value for each row. Given a place and not a `Producer`, it opens one, with `config`, and closes it.

    >>> with BufferSender("memory://doctest-sender") as sender:
    ...     sender.send([Record(b"hello")])
    """

    def __init__(
        self, producer: Producer | str | os.PathLike[str] | ObjectStore, config: ProducerConfig | None = None
    ) -> None:
        super().__init__()
        self._owns_producer = not isinstance(producer, Producer)
        self._producer = producer if isinstance(producer, Producer) else Producer(producer, config)

    def __repr__(self) -> str:
        return f"BufferSender({self._producer!r})"

    def send(self, records: WorkBatch | Iterable[Record]) -> None:
        """Send records, or those of a batch, and return when they are durable; no records are no work.

        Raises what went wrong: then some of them may be there and some not, as after any failed write.
        """
        self._check_open()
        batch = records if isinstance(records, WorkBatch) else WorkBatch(records)
        if batch.is_empty:
            return
        columns = batch.record_columns
        # In pieces of at most one data object each, which are written in parallel.
        most = min(_MAX_BYTES_PER_OBJECT, self._producer.max_batch_bytes)
        handles, start = list[WriteHandle](), 0
        while start < columns.num_rows:
            count = max(rows_of_size(columns, start, most), 1)
            handles.append(self._producer.produce(columns.slice(start, count)))
            start += count
        try:
            self._producer.flush()  # not to wait for its interval
        except Exception as error:  # noqa: BLE001  it may be about other writes; the handles tell how these ended
            _log.warning("flushing %r: %s", self._producer, error)
        for handle in handles:
            handle.result()

    def close(self) -> None:
        """Close the producer, if it is ours. A second `close` does nothing."""
        self._is_closed = True
        if self._owns_producer:
            self._producer.close()
