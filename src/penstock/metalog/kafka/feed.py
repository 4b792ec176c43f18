"""`KafkaFeed`: the records of a subscription to a Kafka topic, by one consumer that is assigned what is wanted."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from penstock.core import get_logger
from penstock.errors import StorageError
from penstock.metalog.kafka.config import KafkaConfig, kafka_client
from penstock.metalog.kafka.topic import KafkaTopic, StaleLeader
from penstock.metalog.records import MetadataRecord
from penstock.metalog.subscription import Wanted

_log = get_logger(__name__)

_MAX_RECORDS_PER_FETCH = 1_000
_NO_OFFSET = -1  # differs from every offset that can be wanted
_POLL_SECONDS = 0.1  # until a wake is noticed; a record is noticed at once
_POLL_SECONDS_WHILE_ASKING = 0.005  # the answer to a request for offsets comes within milliseconds


@dataclass(slots=True)
class _Asked:
    """Requests for the first offset of a partition and its end: a consumer is never assigned an offset outside them.

    From there Kafka would reset it, to the beginning or the end, and records would be lost.
    """

    generation: int
    beginning: Future[Any]
    end: Future[Any]

    def is_answered(self) -> bool:
        return self.beginning.done() and self.end.done()


@dataclass(slots=True)
class _Following:
    """The consumer delivers a partition, and `next_offset` is what the subscription wants of it."""

    generation: int
    next_offset: int


class KafkaFeed:
    """A consumer that is assigned what is wanted, partition by partition, and never commits.

    The client drops what it fetched for a partition with its assignment. So one that is wanted in another generation,
    or at another offset than the one that comes next, is assigned again.
    """

    def __init__(self, config: KafkaConfig, topic: KafkaTopic, check_open: Callable[[], None]) -> None:
        self._client = kafka_client()
        self._topic = topic
        self._check_open = check_open
        self._consumer = config.consumer()
        self._asked: dict[int, _Asked] = {}
        self._following: dict[int, _Following] = {}
        self._failure: StorageError | None = None
        self._woken = threading.Event()

    def fetch(self, wanted: Sequence[Wanted], timeout: float) -> Sequence[MetadataRecord]:
        """Take what the consumer has, or wait for it up to the timeout. Raises `StorageError` where Kafka refuses."""
        until = time.monotonic() + timeout
        while True:
            self._check_open()
            self._raise_failure()
            self._follow(wanted)
            remaining = until - time.monotonic()
            records = self._take(min(max(remaining, 0.0), self._poll_seconds(wanted)))
            if records or remaining <= 0 or self._woken.is_set():
                self._woken.clear()
                return records

    def wake(self) -> None:
        """End the wait of the call under way, or of the next one."""
        self._woken.set()

    def close(self) -> None:
        """Close the consumer."""
        self._consumer.close()

    def _poll_seconds(self, wanted: Sequence[Wanted]) -> float:
        is_asking = self._asked or len(self._following) < len(wanted)
        return _POLL_SECONDS_WHILE_ASKING if is_asking else _POLL_SECONDS

    def _raise_failure(self) -> None:
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def _follow(self, wanted: Sequence[Wanted]) -> None:
        """Bring the consumer's assignment to what is wanted."""
        now = {one.partition: one for one in wanted}
        self._unassign(
            partition
            for partition, one in self._following.items()
            if partition not in now
            or (one.generation, one.next_offset) != (now[partition].generation, now[partition].offset)
        )
        for partition, asked in list(self._asked.items()):
            if partition not in now or asked.generation != now[partition].generation:
                del self._asked[partition]
        self._ask([one for one in wanted if one.partition not in self._following and one.partition not in self._asked])
        self._assign(
            [one for one in wanted if one.partition in self._asked and self._asked[one.partition].is_answered()]
        )

    def _ask(self, unknown: Sequence[Wanted]) -> None:
        if not unknown:
            return
        partitions = [one.partition for one in unknown]
        beginnings, ends = self._topic.ask_beginnings(partitions), self._topic.ask_ends(partitions)
        for one in unknown:
            self._asked[one.partition] = _Asked(one.generation, beginnings[one.partition], ends[one.partition])

    def _assign(self, answered: Sequence[Wanted]) -> None:
        if not answered:
            return
        asked = {one.partition: self._asked.pop(one.partition) for one in answered}
        try:
            places = [
                self._client.TopicPartition(self._topic.name, one.partition, self._place(one, asked[one.partition]))
                for one in answered
            ]
        except StaleLeader:
            return  # the offsets are asked for again
        self._call(self._consumer.incremental_assign, places)
        for one in answered:
            self._following[one.partition] = _Following(one.generation, one.offset)

    def _place(self, wanted: Wanted, asked: _Asked) -> int:
        """The offset to read from: the one that is wanted, or the nearest one that exists."""
        beginning = int(self._topic.answer(asked.beginning).offset)
        end = int(self._topic.answer(asked.end).offset)
        if wanted.offset < beginning:
            _log.warning(
                "partition %d of topic %r begins at %d now: %d records before it were deleted by Kafka",
                wanted.partition,
                self._topic.name,
                beginning,
                beginning - wanted.offset,
            )
        return max(beginning, min(wanted.offset, end))

    def _unassign(self, partitions: Iterable[int]) -> None:
        removed = [self._client.TopicPartition(self._topic.name, partition) for partition in partitions]
        if removed:
            for one in removed:
                del self._following[one.partition]
            self._call(self._consumer.incremental_unassign, removed)

    def _take(self, timeout: float) -> list[MetadataRecord]:
        try:
            # `consume` alone would wait until there are so many, or for the whole timeout.
            first = self._call(self._consumer.poll, timeout)
            if first is None:
                return []
            return self._records([first, *self._call(self._consumer.consume, _MAX_RECORDS_PER_FETCH - 1, 0)])
        except BaseException:
            # An interrupt too may lose records that the consumer returned, so every partition is assigned again.
            for one in self._following.values():
                one.next_offset = _NO_OFFSET
            raise

    def _records(self, messages: Iterable[Any]) -> list[MetadataRecord]:
        records: list[MetadataRecord] = []
        for message in messages:
            if message.error() is not None:
                self._note(message)
                continue
            at = self._following.get(message.partition())
            # An offset below the wanted one: the start was beyond the end.
            if at is None or message.offset() < at.next_offset:
                continue
            at.next_offset = message.offset() + 1
            records.append(MetadataRecord(message.partition(), message.offset(), message.value() or b""))
        if not records:
            self._raise_failure()
        return records

    def _note(self, message: Any) -> None:
        """Keep an error until the records before it are returned; its partition is assigned again."""
        error = message.error()
        codes = self._client.KafkaError
        if error.code() == codes._PARTITION_EOF:
            return
        partition = message.partition()
        if partition in self._following:
            self._unassign([partition])
        if error.code() in (codes._AUTO_OFFSET_RESET, codes.OFFSET_OUT_OF_RANGE):
            return  # the next records were deleted: it goes on where the partition begins now
        self._failure = self._topic.failure(error)

    def _call(self, call: Callable[..., Any], *args: Any) -> Any:
        try:
            return call(*args)
        except self._client.KafkaException as error:
            raise self._topic.failure(error.args[0]) from None
