"""`KafkaMetadataLog`: a topic of Kafka as a metadata log."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from penstock.core import Backoff, Closing, Latch, check_seconds, check_whole, get_logger
from penstock.errors import BackpressureTimeout, InvalidInput, OutcomeUnknown, StorageError
from penstock.metalog.kafka.config import KafkaConfig, kafka_client
from penstock.metalog.kafka.feed import KafkaFeed
from penstock.metalog.kafka.topic import KafkaTopic
from penstock.metalog.records import PartitionStart, as_payload, check_partition, check_partition_count
from penstock.metalog.subscription import Feed, Subscription

if TYPE_CHECKING:
    from penstock.core import LoopLatch

_log = get_logger(__name__)

_POLL_SECONDS = 0.1  # until the thread that serves deliveries notices that it must end; a delivery it notices at once
_FIRST_WAIT_SECONDS, _LONGEST_WAIT_SECONDS = 0.01, 0.1  # while the client's memory is full
_REPORT_GRACE_SECONDS = 5.0  # that the report of a delivery may be late

# Errors after which the record is not in the log, and will not be. After any other it may be.
_REFUSED = (
    "TOPIC_AUTHORIZATION_FAILED",
    "CLUSTER_AUTHORIZATION_FAILED",
    "INVALID_RECORD",
    "POLICY_VIOLATION",
    "RECORD_LIST_TOO_LARGE",
    "_UNKNOWN_TOPIC",
    "_UNKNOWN_PARTITION",
    "_PURGE_QUEUE",
)


class KafkaMetadataLog(Closing):
    """A metadata log in a topic of Kafka: metadata partition n is the topic's partition n. Extra: `kafka`.

    `config` is what confluent-kafka takes, or just its bootstrap servers. Records are acknowledged by all replicas in
    sync, and written once (`acks=all`, idempotent). With `create` a topic that does not exist is created, with
    `partition_count` partitions without retention; `replication_factor` is the broker's own default unless it is given.
    `timeout` is how many seconds a request may take, and a publish too, unless the config sets `delivery.timeout.ms`.

    Raises `InvalidInput` for a config that would weaken this, for a topic with another `partition_count`, and where
    the extra is not installed; `NotFound` where there is no topic; `StorageError` where Kafka cannot be reached.

    ```text
    with KafkaMetadataLog("broker:9092", "segments", create=True, partition_count=50) as log:
        log.publish(7, b"hello")
    ```
    """

    _instead_in_child = "its threads are not in the child: open the log there"

    def __init__(
        self,
        config: Mapping[str, Any] | str,
        topic: str,
        *,
        partition_count: int | None = None,
        create: bool = False,
        replication_factor: int | None = None,
        timeout: float = 30.0,
    ) -> None:
        super().__init__()
        check_seconds("timeout", timeout, most=3600)
        if partition_count is not None:
            check_partition_count(partition_count)
        if replication_factor is not None:
            check_whole("replication_factor", replication_factor, most=32_767)
        self._config = KafkaConfig.checked(config, timeout)
        self._client = kafka_client()
        self._topic = KafkaTopic(self._config, topic, timeout)
        self._producer = self._config.producer()
        self._partition_count = self._topic.open(partition_count, create=create, replication_factor=replication_factor)
        self._closing = threading.Lock()
        self._stop = threading.Event()
        self._serving = threading.Thread(
            target=_serve, args=(self._producer, self._topic, self._stop), name="penstock-metalog-kafka", daemon=True
        )
        self._serving.start()
        weakref.finalize(self, self._stop.set)  # one that is dropped leaves no thread

    def __repr__(self) -> str:
        return f"KafkaMetadataLog({self._topic.name!r}, {self._partition_count} partitions)"

    @property
    def partition_count(self) -> int:
        """How many partitions the topic had when the log was opened."""
        return self._partition_count

    def publish(self, partition: int, payload: bytes) -> int:
        """Append a payload, and return its offset when all replicas in sync have it.

        Raises `PartitionOutOfRange`, `InvalidInput` for a payload that is too large for the topic, `Closed`,
        `BackpressureTimeout` where the client's memory stays full, `StorageError` where Kafka refuses; and
        `OutcomeUnknown` where Kafka did not answer in time: the record may be in the log, or appear there later.
        """
        payload = self._checked(partition, payload)
        latch = Latch()
        report, backoff = _Report(latch), self._memory_backoff()
        while not self._is_sent(partition, payload, report):
            if not backoff.wait():
                raise self._no_memory(payload)
        latch.wait(self._config.delivery_timeout + _REPORT_GRACE_SECONDS)
        return self._offset(partition, payload, report)

    async def publish_async(self, partition: int, payload: bytes) -> int:
        """Do what `publish` does, without blocking the loop, and without a thread.

        Cancelled, it may have published the payload, or publish it still, as after `OutcomeUnknown`. To find out, read
        the partition from the high-water mark that it had before.
        """
        from penstock.core import LoopLatch  # callers that do not await need not load asyncio

        payload = self._checked(partition, payload)
        latch = LoopLatch()
        report, backoff = _Report(latch), self._memory_backoff()
        while not self._is_sent(partition, payload, report):
            if not await backoff.wait_async():
                raise self._no_memory(payload)
        await latch.wait(self._config.delivery_timeout + _REPORT_GRACE_SECONDS)
        return self._offset(partition, payload, report)

    def high_water_marks(self) -> list[int]:
        """One past the last offset of each partition. Raises `StorageError` and `Closed`."""
        self._check_process()
        self._check_open()
        ends = self._topic.ends(range(self._partition_count))
        return [ends[partition] for partition in range(self._partition_count)]

    async def high_water_marks_async(self) -> list[int]:
        """Do what `high_water_marks` does, without blocking the loop."""
        from penstock.core import in_new_thread

        return await in_new_thread("metalog-read", self.high_water_marks)

    def subscribe(self, starts: Iterable[PartitionStart]) -> Subscription:
        """Deliver the records from each start on, then new ones as they are published. Raises `Closed`.

        Each subscription has a consumer of its own, which commits nothing and joins no group.
        """
        return Subscription(self.open_feed(), self._partition_count, starts)

    def open_feed(self) -> Feed:
        """Where one subscription gets its records. Raises `Closed`."""
        self._check_process()
        self._check_open()
        return KafkaFeed(self._config, self._topic, self._check_open)

    def close(self) -> None:
        """Wait for what is being published, and close the log and its subscriptions."""
        self._check_process()
        with self._closing:
            self._is_closed = True
            self._producer.flush()  # returns: each record is delivered, or its time is over
            self._stop.set()
            self._serving.join()

    def _checked(self, partition: int, payload: bytes) -> bytes:
        check_partition(partition, self._partition_count)
        payload = as_payload(payload)
        self._check_process()
        return payload

    def _memory_backoff(self) -> Backoff:
        return Backoff(_FIRST_WAIT_SECONDS, _LONGEST_WAIT_SECONDS, give_up_after=self._config.delivery_timeout)

    def _no_memory(self, payload: bytes) -> BackpressureTimeout:
        return BackpressureTimeout(
            f"{self!r} has no memory for {len(payload)} bytes: raise queue.buffering.max.kbytes",
            timeout=self._config.delivery_timeout,
        )

    def _is_sent(self, partition: int, payload: bytes, report: _Report) -> bool:
        """Give a record to the client. False: its memory is full."""
        self._check_open()
        try:
            self._producer.produce(self._topic.name, value=payload, partition=partition, on_delivery=report)
        except BufferError:
            return False
        except self._client.KafkaException as error:
            raise self._undelivered(error.args[0], len(payload), sent=False) from None
        return True

    def _offset(self, partition: int, payload: bytes, report: _Report) -> int:
        """What a report says, after the wait for it. Raises what went wrong."""
        if not report.has_come:
            raise OutcomeUnknown(f"{self!r} got no report whether a record of partition {partition} is written")
        if report.error is not None:
            raise self._undelivered(report.error, len(payload))
        if report.offset < 0:  # the broker had it already, from an earlier try, and no longer knows its offset
            raise OutcomeUnknown(
                f"a record is in partition {partition} of {self!r}, and Kafka does not know its offset"
            )
        return report.offset

    def _undelivered(self, error: Any, size: int, *, sent: bool = True) -> Exception:
        codes = self._client.KafkaError
        reason = self._config.without_secrets(f"{error.str()} ({error.name()})")
        if error.code() == codes.MSG_SIZE_TOO_LARGE:
            return InvalidInput(
                f"payload must fit the topic, and {size} bytes do not: raise the topic's max.message.bytes and the "
                f"config's message.max.bytes ({reason})"
            )
        if error.fatal():
            reason += "; this log's producer has stopped for good: open the log again"
        if not sent or error.code() in {getattr(codes, name) for name in _REFUSED}:
            return StorageError(f"Kafka refuses a record for {self!r}: {reason}")
        return OutcomeUnknown(f"a record may be in {self!r}, or appear there later: {reason}")


class _Report:
    """How a delivery ended. The client calls it, and it opens the latch of the call that waits."""

    def __init__(self, latch: Latch | LoopLatch) -> None:
        self.latch = latch
        self.has_come = False
        self.offset = -1
        self.error: Any = None

    def __call__(self, error: Any, message: Any) -> None:
        self.error = error
        if error is None:
            self.offset = message.offset()
        self.has_come = True
        self.latch.open()


def _serve(producer: Any, topic: KafkaTopic, stop: threading.Event) -> None:
    """Let the client call its reports, until it is stopped. It has no reference to the log, which may be dropped."""
    while not stop.is_set():
        try:
            producer.poll(_POLL_SECONDS)
            topic.serve()
        except Exception:  # noqa: BLE001  a user's own callback in the config
            _log.exception("a callback of the Kafka client failed")
