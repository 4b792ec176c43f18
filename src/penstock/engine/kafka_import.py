"""`KafkaImport`: a topic of Kafka into a buffer, each record once. The buffer itself says how far an import has come.

Every partition is a named writer of the buffer, and a block's transaction is the offset after its last record: data and
offset are one manifest write. A block is appended only where the writer's last transaction is the offset that it begins
at, so neither a killed import whose last write arrives late nor a second import can append a record again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote, urlsplit

from penstock.buffer import FLUSH_SIZE_BYTES, BlockAppender, BlockName, ProducerConfig, Writers, join_to_size
from penstock.core import Closing, check_seconds, get_logger
from penstock.engine.transports.kafka_reach import UNREACHABLE_AFTER, Reach
from penstock.engine.transports.kafka_records import record_of
from penstock.errors import InvalidInput, NotFound, StorageError
from penstock.metalog import KafkaConfig, kafka_client
from penstock.records import Record, records_to_arrow
from penstock.storage import ObjectStore

MAX_RECORDS_PER_BLOCK = 100_000
_MAX_MESSAGES_PER_CALL = 10_000
_REQUEST_SECONDS = 15.0
_WAIT_SECONDS = 0.2  # for messages, until a stop is noticed
_FLUSH_SECONDS = 1.0  # after which a block that is not full is appended
_CLOSE_SECONDS = 5.0
_RETRY_SECONDS = 0.2
_PARTITIONS_SECONDS = 10.0  # after which it looks for new partitions

_log = get_logger(__name__)


@dataclass(frozen=True)
class KafkaPlace:
    """A topic, and how its brokers are reached. It is never shown whole: it may hold a password."""

    bootstrap: str
    topic: str
    settings: Mapping[str, Any] = field(repr=False, default_factory=dict)

    @classmethod
    def of(cls, url: str, options: Mapping[str, str]) -> KafkaPlace:
        """Take `kafka://[user:password@]host:port[,host:port]/topic` apart. Raises `InvalidInput` for anything else."""
        form = "a topic is kafka://HOST:PORT/TOPIC"
        split = urlsplit(url)
        login, _, hosts = split.netloc.rpartition("@")
        topic = unquote(split.path[1:])
        if split.scheme != "kafka" or not hosts or not topic or "/" in topic or split.query or split.fragment:
            raise InvalidInput(f"{form}, such as kafka://broker-1:9092,broker-2:9092/events")
        settings: dict[str, Any] = {}
        if login:
            user, _, password = login.partition(":")
            settings = {
                "security.protocol": "SASL_SSL",
                "sasl.mechanisms": "PLAIN",
                "sasl.username": unquote(user),
                "sasl.password": unquote(password),
            }
        return cls(hosts, topic, settings | dict(options))


@dataclass(slots=True)
class ImportedPartition:
    """How far a partition is: the buffer has the records before `appended`, and this run began at `begin`."""

    begin: int
    appended: int
    read: int
    end: int | None = None
    """Where the partition ended when the import began, if it stops there."""
    known: int = 0
    """The last transaction of its writer; 0 for none."""
    held: list[Record] = field(default_factory=list)
    size: int = 0

    @property
    def is_done(self) -> bool:
        """Whether everything up to the end is appended."""
        return self.end is not None and self.appended >= self.end


class KafkaImport(Closing):
    """Moves a topic into a buffer, until it is stopped or at the end that the topic had at the start.

    Raises `InvalidInput` where the extra `kafka` is not installed, and for a buffer with a manifest of version 1, which
    remembers no writers; `NotFound` where there is no such topic; `StorageError` where Kafka cannot be reached, and
    while it runs, when it was not for `unreachable_after` seconds.
    """

    _instead_in_child = "make a KafkaImport here"

    def __init__(
        self,
        place: KafkaPlace,
        store: ObjectStore,
        *,
        group: str = "penstock-import",
        start: str = "earliest",
        until_end: bool = False,
        config: ProducerConfig | None = None,
        block_records: int = MAX_RECORDS_PER_BLOCK,
        unreachable_after: float = UNREACHABLE_AFTER,
    ) -> None:
        super().__init__()
        check_seconds("unreachable_after", unreachable_after)
        self._client = kafka_client("An import from Kafka")
        self._kafka = KafkaConfig.checked(
            {"bootstrap.servers": place.bootstrap} | dict(place.settings), _REQUEST_SECONDS
        )
        self._bootstrap = place.bootstrap
        self._topic = place.topic
        self._group = group
        self._block_records = block_records
        self._max_bytes = FLUSH_SIZE_BYTES
        self.events = self.bytes = 0
        writers = Writers(store).list()  # raises on version 1, before anything is read
        self._appender = BlockAppender(store, config)
        self._reach = Reach(self, self._kafka, unreachable_after)
        settings = {"enable.partition.eof": True, "error_cb": self._reach.note}
        self._consumer = self._kafka.group_consumer(group, "error", settings)
        try:
            ends = {number: self._ends(number) for number in self._partition_numbers()}
            begins = self._latest(ends, writers) if start == "latest" else {}
            self.partitions = {
                number: self._begin(number, low, high, writers.get(self._writer(number)), begins.get(number, low))
                for number, (low, high) in ends.items()
            }
            if until_end:
                for number, part in self.partitions.items():
                    part.end = ends[number][1]
        except BaseException:
            self._consumer.close()
            raise

    def __repr__(self) -> str:
        return f"KafkaImport({self._topic!r} at {self._bootstrap}, group {self._group!r})"

    @property
    def remaining(self) -> int | None:
        """How many offsets there are to the end; None without one."""
        parts = self.partitions.values()
        if any(part.end is None for part in parts):
            return None
        return sum(max((part.end or 0) - part.appended, 0) for part in parts)

    def run(self, should_stop: Callable[[], bool], on_progress: Callable[[], object] = lambda: None) -> None:
        """Import until it is at the end, or `should_stop`; what was read by then is appended."""
        self._check_process()
        self._check_open()
        if all(part.is_done for part in self.partitions.values()):
            return
        self._assign()
        flushed = looked = time.monotonic()
        while not should_stop() and not all(part.is_done for part in self.partitions.values()):
            if self.remaining is None and time.monotonic() - looked >= _PARTITIONS_SECONDS:
                self._add_partitions()
                looked = time.monotonic()
            messages = self._call(self._consumer.consume, _MAX_MESSAGES_PER_CALL, _WAIT_SECONDS)
            for message in messages:
                self._take(message)
            self._reach.check(self._consumer)
            is_due = time.monotonic() - flushed >= _FLUSH_SECONDS
            for number, part in self.partitions.items():
                is_at_end = part.end is not None and part.read >= part.end
                if len(part.held) >= self._block_records or part.size >= self._max_bytes or is_due or is_at_end:
                    self._append(number, part)
            flushed = time.monotonic() if is_due else flushed
            on_progress()
        for number, part in self.partitions.items():
            self._append(number, part)

    def close(self) -> None:
        """Close the consumer. A second `close` does nothing."""
        self._check_process()
        is_first = not self._is_closed
        self._is_closed = True
        if is_first:
            # It waits for the offsets that it shows in Kafka, without a limit where no broker is reached.
            closing = threading.Thread(target=self._consumer.close, name="kafka-import-close", daemon=True)
            closing.start()
            closing.join(_CLOSE_SECONDS)

    def _partition_numbers(self) -> list[int]:
        found = self._call(self._consumer.list_topics, self._topic, _REQUEST_SECONDS).topics[self._topic]
        if found.error is not None or not found.partitions:
            raise NotFound(
                f"there is no topic {self._topic!r} that can be read: "
                f"{self._kafka.without_secrets(found.error.str() if found.error else 'it has no partitions')}"
            )
        return sorted(found.partitions)

    def _assign(self) -> None:
        parts = self.partitions.items()
        self._call(self._consumer.assign, [self._at(number, part.read) for number, part in parts if not part.is_done])

    def _add_partitions(self) -> None:
        """Begin with partitions that the topic has got since, at their first record."""
        try:
            new = [number for number in self._partition_numbers() if number not in self.partitions]
            added = {number: self._begin(number, *self._ends(number), None, None) for number in new}
        except (NotFound, StorageError) as error:
            _log.warning("%s; new partitions are looked for again in %g s", error, _PARTITIONS_SECONDS)
            return
        if added:
            _log.info("%r: the topic has new partitions: %s", self, new)
            self.partitions |= added
            self._assign()

    def _ends(self, number: int) -> tuple[int, int]:
        """The offset of the first record of a partition, and the one after its last."""
        low, high = self._call(self._consumer.get_watermark_offsets, self._at(number), _REQUEST_SECONDS)
        return low, high

    def _begin(self, number: int, low: int, high: int, writer: Any, begin: int | None) -> ImportedPartition:
        """Where a partition goes on by its writer in the buffer, or begins where it has none."""
        known = 0 if writer is None else writer.transaction
        first = known if writer is not None else low if begin is None else begin
        if first < low:
            _log.warning(
                "partition %d of topic %r begins at %d: Kafka has deleted %d records before it, which are not imported",
                number, self._topic, low, low - first,
            )  # fmt: skip
            first = low
        if first > high:
            raise InvalidInput(
                f"the buffer has partition {number} of {self._topic!r} up to {first}, and the topic ends at {high}: "
                "it was deleted and created again, or is another one; import it under another --group"
            )
        return ImportedPartition(first, first, first, None, known)

    def _latest(self, ends: Mapping[int, tuple[int, int]], writers: Mapping[str, Any]) -> dict[int, int]:
        """Where an import from the latest records begins: kept in Kafka, for a restart before the first block.

        All of it is kept at once: a partition without an offset, where others have one or a writer, came later, and
        begins at its first record.
        """
        found = self._call(self._consumer.committed, [self._at(number) for number in ends], _REQUEST_SECONDS)
        kept = {one.partition: int(one.offset) for one in found if one.offset >= 0}
        if kept or any(self._writer(number) in writers for number in ends):
            return kept
        latest = {number: high for number, (_, high) in ends.items()}
        offsets = [self._at(number, high) for number, high in latest.items()]
        for one in self._call(lambda: self._consumer.commit(offsets=offsets, asynchronous=False)):
            if one.error is not None:
                raise StorageError(
                    f"{self!r}: its beginning is not kept: {self._kafka.without_secrets(one.error.str())}"
                )
        return latest

    def _take(self, message: Any) -> None:
        error = message.error()
        part = self.partitions[message.partition()]
        if error is None:
            self._reach.note_message()
            if message.offset() < part.read or (part.end is not None and message.offset() >= part.end):
                # Behind the end of `until_end`: a later import takes it.
                part.read = max(part.read, part.end or 0)
                return
            record = record_of(message)
            part.held.append(record)
            part.size += len(record.value) + len(record.key or b"")
            part.read = message.offset() + 1
        elif error.code() == self._client.KafkaError._PARTITION_EOF:
            # The last offsets may be marks of transactions, which are no messages. What came after the end is not read.
            at = message.offset() if part.end is None else min(message.offset(), part.end)
            part.read = max(part.read, at)
        else:
            raise StorageError(f"{self!r}, partition {message.partition()}: {self._kafka.without_secrets(error.str())}")

    def _append(self, number: int, part: ImportedPartition) -> None:
        """Append what is held in one manifest write, under the offset that follows it."""
        if not part.held:
            part.appended = part.read  # marks of transactions alone: there is nothing to append
            return
        name = BlockName(self._writer(number), part.read, follows=part.known)
        batches = join_to_size([records_to_arrow(part.held)], self._max_bytes)
        if self._appender.append([self._appender.write(batch) for batch in batches], name):
            self.events += len(part.held)
            self.bytes += part.size
        part.appended = part.known = part.read
        part.held, part.size = [], 0
        self._show_in_kafka(number, part.appended)

    def _show_in_kafka(self, number: int, offset: int) -> None:
        """Commit the offset in Kafka too, for its tools. The buffer alone decides where an import goes on."""
        try:
            self._consumer.commit(offsets=[self._at(number, offset)], asynchronous=True)
        except self._client.KafkaException as error:
            _log.warning("%r: the offset was not shown in Kafka: %s", self, self._kafka.without_secrets(error))

    def _writer(self, number: int) -> str:
        return f"kafka-import/{self._group}/{self._topic}/{number}"

    def _at(self, number: int, offset: int | None = None) -> Any:
        if offset is None:
            return self._client.TopicPartition(self._topic, number)
        return self._client.TopicPartition(self._topic, number, offset)

    def _call(self, call: Callable[..., Any], *args: Any) -> Any:
        until = time.monotonic() + _REQUEST_SECONDS
        while True:
            try:
                return call(*args)
            except self._client.KafkaException as error:
                reason = error.args[0]
                is_starting = reason.code() in (
                    self._client.KafkaError.NOT_COORDINATOR,
                    self._client.KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
                    self._client.KafkaError.COORDINATOR_NOT_AVAILABLE,
                    self._client.KafkaError.NOT_LEADER_FOR_PARTITION,
                    self._client.KafkaError.LEADER_NOT_AVAILABLE,
                )
                if not is_starting or time.monotonic() >= until:
                    raise self._failed(reason) from None
                time.sleep(_RETRY_SECONDS)  # a broker that has just started

    def _failed(self, reason: Any) -> StorageError:
        return StorageError(f"{self!r}: {self._kafka.without_secrets(reason.str())}")
