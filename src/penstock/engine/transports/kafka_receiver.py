"""`KafkaReceiver`: topics of Kafka as a source of blocks, whose offsets our ack barrier commits."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from penstock.core import Closing, check_seconds, get_logger
from penstock.engine.transports.contract import (
    MAX_BLOCK_BYTES,
    Filter,
    Receiver,
    check_limits,
    checked_filters,
    filtered,
)
from penstock.engine.transports.kafka_reach import UNREACHABLE_AFTER, Reach
from penstock.engine.transports.kafka_records import record_of
from penstock.engine.work_batch import WorkBatch
from penstock.errors import InvalidInput, StorageError
from penstock.metalog import KafkaConfig, kafka_client
from penstock.records import Record

_MAX_MESSAGES_PER_CALL = 10_000
_SEEK_SECONDS = 10.0
_REQUEST_SECONDS = 30.0
_STARTS = ("earliest", "latest")

_Place: TypeAlias = tuple[str, int]  # topic and partition

_log = get_logger(__name__)


class KafkaToken(NamedTuple):
    """The last record of a partition in a block. Its commit is the offset after it."""

    topic: str
    partition: int
    offset: int


class KafkaReceiver(Closing, Receiver):
    """Receives the records of topics as a member of a consumer group. A commit is a commit of offsets. Extra: `kafka`.

    A block has one token for each partition in it. Nothing is committed but by `commit`, which returns when the broker
    has it, and by a group without an offset that begins at `start="latest"`: where it began. A group whose next records
    Kafka has deleted goes on at the first that there is, with a warning. `config` has more settings of confluent-kafka.
    A message without a value is a record with an empty one and the header `kafka-tombstone`.

    When Kafka gives a partition to another member, what was received of it and not committed is dropped here, and
    comes again there; a commit of it raises. To join a group takes some seconds: until then nothing is received, and an
    engine that runs `until_idle` needs a `recv_timeout` that is longer. For one thread at a time.

    Raises `InvalidInput` for a config that is refused, and where the extra is not installed.

    ```text
    with KafkaReceiver("broker:9092", ["events"], "billing") as receiver:
        engine.run(receiver, process, sink)
    ```
    """

    _instead_in_child = "make a KafkaReceiver here, which joins the group"

    def __init__(
        self,
        bootstrap: str,
        topics: str | Iterable[str],
        group: str,
        *,
        config: Mapping[str, Any] | None = None,
        start: str = "earliest",
        filters: Iterable[Filter] = (),
        unreachable_after: float = UNREACHABLE_AFTER,
    ) -> None:
        super().__init__()
        check_seconds("unreachable_after", unreachable_after)
        self._topics = [topics] if isinstance(topics, str) else list(topics)
        if not self._topics or not all(topic and type(topic) is str for topic in self._topics):
            raise InvalidInput(f"topics must be names of topics, not {topics!r}")
        if not group or type(group) is not str:
            raise InvalidInput(f"group must be the name of a consumer group, not {group!r}")
        if start not in _STARTS:
            raise InvalidInput(f"start must be 'earliest' or 'latest', not {start!r}")
        self._filters = checked_filters(filters)
        self._group = group
        self._client = kafka_client("KafkaReceiver")
        given = dict(config or {})
        if str(given.pop("enable.auto.commit", False)).lower() != "false":
            raise InvalidInput("enable.auto.commit must be false: offsets are committed when a block is delivered")
        self._config = KafkaConfig.checked({"bootstrap.servers": bootstrap} | given, _REQUEST_SECONDS)
        self._start = start
        self._reach = Reach(self, self._config, unreachable_after)
        settings = {"enable.partition.eof": False, "error_cb": self._reach.note}
        # Not `start`: a group whose offset is not there any more would go on at the end, behind what is there.
        self._consumer = self._config.group_consumer(group, "earliest", settings)
        self._held = deque[Any]()  # messages that were fetched, and not handed out
        self._begin: dict[_Place, int] = {}  # where a rewind goes back to: what follows the last commit
        self._end: dict[_Place, int] = {}  # the offset after what was handed out
        self._failure: StorageError | None = None
        self._has_failed = False
        self._join()

    @property
    def healthy(self) -> bool:
        """Whether it is open and of this process, and the last receive or commit worked."""
        return not self._is_in_child and not self._is_closed and not self._has_failed

    @property
    def in_hand(self) -> bool:
        """Whether there are records in memory that `recv` would hand out."""
        return bool(self._held)

    def __repr__(self) -> str:
        return f"KafkaReceiver({self._topics!r}, group {self._group!r})"

    def recv(self, max_records: int, max_bytes: int | None = None, timeout: float = 0.1) -> WorkBatch:
        """Receive records, and wait for the first of them.

        Raises `StorageError` for what Kafka reports, and when no broker was reached for `unreachable_after` seconds.
        """
        check_limits(max_records, max_bytes, timeout)
        self._check_process()
        self._check_open()
        most_bytes = MAX_BLOCK_BYTES if max_bytes is None else min(max_bytes, MAX_BLOCK_BYTES)
        try:
            self._fetch(max_records, most_bytes, timeout)
            self._raise_failure()
            if not self._held:
                self._reach.check(self._consumer)
            batch = self._hand_out(max_records, most_bytes)
            if self._filters:
                batch = filtered(batch, self._filters)
        except BaseException:
            self._has_failed = True
            self.rewind()
            raise
        self._has_failed = False
        return batch

    def commit(self, tokens: Sequence[Any]) -> None:
        """Commit the offsets after these records, and return when the broker has them.

        Raises `StorageError` where one is of a partition that this member does not have any more (then no offset is
        committed), and where the broker refuses.
        """
        self._check_process()
        self._check_open()
        ends: dict[_Place, int] = {}
        for token in tokens:
            topic, partition, offset = _checked(token)
            ends[topic, partition] = max(ends.get((topic, partition), 0), offset + 1)
        for place, end in ends.items():
            if end > self._end.get(place, 0):
                self._has_failed = True
                raise StorageError(
                    f"offset {end} of partition {place[1]} of {place[0]!r} is not committed for the group "
                    f"{self._group!r}: the partition was given to another member, which receives its records again"
                )
        # What is committed already must not move back.
        new = {place: end for place, end in ends.items() if end > self._begin.get(place, 0)}
        if not new:
            return
        try:
            self._commit(new)
        except BaseException:
            self._has_failed = True
            raise
        self._begin.update(new)

    def rewind(self) -> None:
        """Go back to the first record of each partition that was not committed."""
        self._check_process()
        self._held.clear()
        if self._is_closed:
            return
        for place in list(self._end):
            self._seek(place)
        self._end = {place: self._begin[place] for place in self._end if place in self._begin}

    def close(self) -> None:
        """Leave the group; what was not committed comes again to another member. A second `close` does nothing."""
        self._check_process()
        is_first = not self._is_closed
        self._is_closed = True
        self._held.clear()
        if is_first:
            self._consumer.close()

    def _fetch(self, max_records: int, max_bytes: int, timeout: float) -> None:
        """Fill what is held up to the limits; wait for the first message only."""
        if not self._is_joined:
            self._consumer.unsubscribe()
            self._join()
        until = time.monotonic() + timeout
        size = sum(map(_size, self._held))
        while len(self._held) < max_records and size <= max_bytes and self._failure is None:
            before = len(self._held)
            if not self._held:
                first = self._call(self._consumer.poll, max(until - time.monotonic(), 0))
                got = [] if first is None else [first]
            else:
                room = min(max_records - len(self._held), _MAX_MESSAGES_PER_CALL)
                if size:  # not many more than the limit allows: what is fetched is held in memory
                    room = min(room, max((max_bytes - size) * len(self._held) // size, 1))
                got = self._call(self._consumer.consume, room, 0)
            self._note(got)
            is_whole = len(self._held) == before + len(got)  # a callback may have dropped some, in the call
            size = size + sum(map(_size, got)) if is_whole else sum(map(_size, self._held))
            if not got or (not self._held and time.monotonic() >= until):
                return

    def _raise_failure(self) -> None:
        """Raise what Kafka reported, after what came before it was handed out."""
        if not self._held and self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure

    def _note(self, messages: Iterable[Any]) -> None:
        for message in messages:
            error = message.error()
            if error is None:
                self._held.append(message)
                self._reach.note_message()
            elif error.code() in (self._client.KafkaError._MAX_POLL_EXCEEDED, self._client.KafkaError._PARTITION_EOF):
                _log.warning("%r: %s", self, self._config.without_secrets(error.str()))  # it joins again by itself
            else:
                self._failure = StorageError(f"{self!r}: {self._config.without_secrets(error.str())}")

    def _join(self) -> None:
        """Join the group. The callbacks run within `poll` and `consume`, so in the thread that receives."""
        more = {"on_assign": self._keep_beginnings} if self._start == "latest" else {}
        self._consumer.subscribe(self._topics, on_revoke=self._drop, on_lost=self._drop, **more)
        self._is_joined = True

    def _keep_beginnings(self, consumer: Any, partitions: list[Any]) -> None:
        """Commit where partitions begin for which the group has no offset: at the end that they have now.

        Otherwise what comes until the first commit would be lost to a member that is killed before it.
        """
        try:
            found = consumer.committed(partitions, _REQUEST_SECONDS)
            new = [(one.topic, one.partition) for one in found if one.offset < 0]
            ends = {
                place: consumer.get_watermark_offsets(self._client.TopicPartition(*place), _REQUEST_SECONDS)[1]
                for place in new
            }
            if ends:
                self._commit(ends)
        except (self._client.KafkaException, StorageError) as error:
            is_ours = isinstance(error, StorageError)
            self._failure = error if is_ours else self._failed("its beginning is not known", error)
            consumer.assign([])  # or else it would begin at the first record
            self._is_joined = False

    def _hand_out(self, max_records: int, max_bytes: int) -> WorkBatch:
        records, last, size = list[Record](), dict[_Place, int](), 0
        while self._held and len(records) < max_records:
            message = self._held[0]
            size += _size(message)
            if records and size > max_bytes:
                break
            place = message.topic(), message.partition()
            self._begin.setdefault(place, message.offset())
            self._end.setdefault(place, message.offset())
            records.append(record_of(message))
            last[place] = message.offset()
            self._held.popleft()
        for place, offset in last.items():
            self._end[place] = max(self._end[place], offset + 1)
        return WorkBatch(records, [KafkaToken(*place, offset) for place, offset in last.items()])

    def _drop(self, _consumer: Any, partitions: Iterable[Any]) -> None:
        """Forget partitions that another member gets: their records come again there."""
        gone = {(one.topic, one.partition) for one in partitions}
        self._held = deque(one for one in self._held if (one.topic(), one.partition()) not in gone)
        for place in gone:
            self._begin.pop(place, None)
            self._end.pop(place, None)

    def _commit(self, ends: Mapping[_Place, int]) -> None:
        offsets = [self._client.TopicPartition(*place, end) for place, end in ends.items()]
        try:
            done = self._consumer.commit(offsets=offsets, asynchronous=False)
        except self._client.KafkaException as error:
            raise self._failed("its offsets were not committed", error) from None
        for one in done or ():
            if one.error is not None:
                raise StorageError(
                    f"{self!r}: offset {one.offset} of partition {one.partition} of {one.topic!r} is not committed: "
                    f"{self._config.without_secrets(one.error.str())}"
                )

    def _seek(self, place: _Place) -> None:
        until = time.monotonic() + _SEEK_SECONDS
        while True:
            try:
                self._consumer.seek(self._client.TopicPartition(*place, self._begin[place]))
            except self._client.KafkaException as error:
                # Right after an assignment the client has not begun to fetch, and cannot seek yet.
                if time.monotonic() >= until:
                    raise self._failed("it could not go back to what was not committed", error) from None
                time.sleep(0.05)
            else:
                return

    def _call(self, call: Any, *args: Any) -> Any:
        try:
            return call(*args)
        except self._client.KafkaException as error:
            raise self._failed("nothing was received", error) from None

    def _failed(self, what: str, error: Any) -> StorageError:
        reason = error.args[0]
        text = reason.str() if hasattr(reason, "str") else str(reason)
        return StorageError(f"{self!r}: {what}: {self._config.without_secrets(text)}")


def _size(message: Any) -> int:
    return len(message) if message.error() is None else 0


def _checked(token: Any) -> tuple[str, int, int]:
    try:
        topic, partition, offset = token
    except (TypeError, ValueError):
        raise InvalidInput(f"a token is (topic, partition, offset), not {token!r:.100}") from None
    return topic, partition, offset
