"""`BufferSender`: a buffer as a place where records go."""

from __future__ import annotations

import os
from collections.abc import Iterable
from types import TracebackType

from penstock.buffer import Producer, ProducerConfig, WriteHandle
from penstock.core import get_logger
from penstock.engine.work_batch import WorkBatch
from penstock.errors import Closed
from penstock.records import Record, rows_of_size
from penstock.storage import ObjectStore

_CONFIG = ProducerConfig()
_AT_ONCE = 64 << 20  # bytes in one data object, as a producer makes them

_log = get_logger(__name__)


class BufferSender:
    """Sends records into a buffer, and returns when everything is durable and in its queue.

    A `WorkBatch` goes over in columns, without an object for a record; one with columns of its own is sent as JSON, a
    value for each row. Given a place and not a `Producer`, it opens one, with `config`, and closes it.

    >>> with BufferSender("memory://doctest-sender") as sender:
    ...     sender.send([Record(b"hello")])
    """

    def __init__(
        self, producer: Producer | str | os.PathLike[str] | ObjectStore, config: ProducerConfig = _CONFIG
    ) -> None:
        self._owns_producer = not isinstance(producer, Producer)
        self._producer = producer if isinstance(producer, Producer) else Producer(producer, config)
        self._is_closed = False

    def __repr__(self) -> str:
        return f"BufferSender({self._producer!r})"

    def __enter__(self) -> BufferSender:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._is_closed = True
        if self._owns_producer:
            self._producer.__exit__(kind, error, traceback)  # it does not hide what is under way

    def send(self, records: WorkBatch | Iterable[Record]) -> None:
        """Send records, or those of a batch, and return when they are durable; no records are no work.

        Raises what went wrong: then some of them may be there and some not, as after any failed write.
        """
        if self._is_closed:
            raise Closed(f"{self!r} is closed")
        batch = records if isinstance(records, WorkBatch) else WorkBatch(records)
        if batch.is_empty:
            return
        handles = self._produce(batch)
        try:
            self._producer.flush()  # not to wait for its interval
        except Exception as error:  # noqa: BLE001  it may be about somebody else's; ours is what the handles say
            _log.warning("flushing %r: %s", self._producer, error)
        for handle in handles:
            handle.result()

    def close(self) -> None:
        """Close the producer, if it is ours. A second `close` does nothing."""
        self._is_closed = True
        if self._owns_producer:
            self._producer.close()

    def _produce(self, batch: WorkBatch) -> list[WriteHandle]:
        """Hand it over in pieces of a data object each: they are written side by side."""
        columns = batch.record_columns
        most = min(_AT_ONCE, self._producer.max_batch_bytes)
        handles, start = list[WriteHandle](), 0
        while start < columns.num_rows:
            count = max(rows_of_size(columns, start, most), 1)
            handles.append(self._producer.produce(columns.slice(start, count)))
            start += count
        return handles
