"""A metadata log's topic: how it is created, how many partitions it has, and where each of them ends."""

from __future__ import annotations

import re
from collections.abc import Iterable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import Any

from penstock.core import Backoff, call_with_retries, get_logger
from penstock.errors import InvalidInput, NotFound, OutcomeUnknown, StorageError
from penstock.metalog.kafka.config import KafkaConfig, kafka_client
from penstock.metalog.records import MAX_PARTITIONS

_log = get_logger(__name__)

_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}")
_FIRST_WAIT_SECONDS, _LONGEST_WAIT_SECONDS = 0.05, 0.5
_ANSWER_GRACE_SECONDS = 5.0  # that an answer may come after the timeout, which the client itself watches
_NO_RETENTION = {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"}

# A partition has had an election since the client last looked, or has no leader yet (_NOENT).
_STALE = ("_NOENT", "FENCED_LEADER_EPOCH", "UNKNOWN_LEADER_EPOCH", "NOT_LEADER_FOR_PARTITION", "LEADER_NOT_AVAILABLE")


class StaleLeader(StorageError):
    """The client asked a broker that is not the leader any more. It looks for the leader now: ask again, later."""


class KafkaTopic:
    """A topic as its administrator sees it. Any thread may ask."""

    def __init__(self, config: KafkaConfig, name: object, timeout: float) -> None:
        if not isinstance(name, str) or not _NAME.fullmatch(name) or name in {".", ".."}:
            raise InvalidInput(f"topic must be 1 to 249 of a-z, A-Z, 0-9, '.', '_' and '-', not {name!r}")
        self.name = name
        self._config = config
        self._timeout = timeout
        self._client = kafka_client()
        self._admin = config.admin()

    def open(self, partition_count: int | None, *, create: bool, replication_factor: int | None) -> int:
        """How many partitions it has. A topic that does not exist is created first, with `create`."""
        count = self._count()
        if count is None and not create:
            raise NotFound(f"there is no topic {self.name!r}: create it, or give create=True and a partition_count")
        if count is None:
            if partition_count is None:
                raise InvalidInput(f"partition_count must be given to create the topic {self.name!r}")
            self._create(partition_count, replication_factor)
            count = self._wait_until_visible()
        else:
            self._warn_of_retention()
        if partition_count is not None and partition_count != count:
            raise InvalidInput(
                f"partition_count must be {count}, as many as topic {self.name!r} has, not {partition_count}"
            )
        if count > MAX_PARTITIONS:
            raise InvalidInput(
                f"topic {self.name!r} has {count} partitions, and a metadata log has at most {MAX_PARTITIONS}: use "
                "another topic"
            )
        return count

    def ends(self, partitions: Iterable[int]) -> dict[int, int]:
        """One past the last offset, of each partition."""
        wanted = list(partitions)

        def ask() -> dict[int, int]:
            return {partition: self.answer(future).offset for partition, future in self.ask_ends(wanted).items()}

        return call_with_retries(ask, self._backoff(), on=StaleLeader)

    def ask_ends(self, partitions: Iterable[int]) -> dict[int, Future[Any]]:
        """Ask where each partition ends; one request for all of them."""
        return self._ask(partitions, self._client.admin.OffsetSpec.latest())

    def ask_beginnings(self, partitions: Iterable[int]) -> dict[int, Future[Any]]:
        """Ask for the first offset that each partition still has."""
        return self._ask(partitions, self._client.admin.OffsetSpec.earliest())

    def answer(self, future: Future[Any]) -> Any:
        """Wait for an answer; a client's error becomes ours."""
        try:
            return future.result(self._timeout + _ANSWER_GRACE_SECONDS)
        except self._client.KafkaException as error:
            if error.args[0].code() in {getattr(self._client.KafkaError, name) for name in _STALE}:
                self._describe()  # nothing else makes the client look for the leader; the answer is not needed
                raise StaleLeader(f"topic {self.name!r}: {error.args[0].str()}") from None
            raise self.failure(error.args[0]) from None
        except FutureTimeoutError:
            raise StorageError(f"Kafka did not answer within {self._timeout} s about topic {self.name!r}") from None

    def failure(self, error: Any) -> StorageError:
        """The error to raise for a client's error about this topic."""
        reason = self._config.without_secrets(f"{error.str()} ({error.name()})")
        if error.code() in (self._client.KafkaError.UNKNOWN_TOPIC_OR_PART, self._client.KafkaError._UNKNOWN_TOPIC):
            return NotFound(f"the topic {self.name!r} does not exist any more: {reason}")
        return StorageError(f"Kafka refuses, or cannot be reached, for topic {self.name!r}: {reason}")

    def serve(self) -> None:
        """Let the client call its callbacks, such as the logger's."""
        self._admin.poll(0)

    def _ask(self, partitions: Iterable[int], which: Any) -> dict[int, Future[Any]]:
        wanted = {self._client.TopicPartition(self.name, partition): which for partition in partitions}
        try:
            asked = self._admin.list_offsets(wanted, request_timeout=self._timeout)
        except self._client.KafkaException as error:
            raise self.failure(error.args[0]) from None
        return {at.partition: future for at, future in asked.items()}

    def _count(self) -> int | None:
        """How many partitions there are, if the topic is there and each of them has a leader.

        It asks by `describe_topics`: a plain look at the metadata of one topic makes brokers create it.
        """
        try:
            partitions = self.answer(self._describe()).partitions
        except NotFound:
            return None
        return len(partitions) if all(one.leader is not None for one in partitions) else None

    def _describe(self) -> Future[Any]:
        wanted = self._client.TopicCollection([self.name])
        asked: dict[str, Future[Any]] = self._admin.describe_topics(wanted, request_timeout=self._timeout)
        return asked[self.name]

    def _create(self, partition_count: int, replication_factor: int | None) -> None:
        factor = -1 if replication_factor is None else replication_factor
        topic = self._client.admin.NewTopic(self.name, partition_count, factor, config=_NO_RETENTION)
        asked = self._admin.create_topics([topic], request_timeout=self._timeout, operation_timeout=self._timeout)
        try:
            asked[self.name].result(2 * self._timeout + _ANSWER_GRACE_SECONDS)
        except self._client.KafkaException as error:
            code = error.args[0].code()
            if code == self._client.KafkaError.TOPIC_ALREADY_EXISTS:
                return  # another process created it first
            if code in (self._client.KafkaError.INVALID_REPLICATION_FACTOR, self._client.KafkaError.INVALID_PARTITIONS):
                raise InvalidInput(f"Kafka refuses to create topic {self.name!r}: {error.args[0].str()}") from None
            raise self.failure(error.args[0]) from None
        except FutureTimeoutError:
            raise OutcomeUnknown(
                f"Kafka did not answer within {self._timeout} s whether it created {self.name!r}"
            ) from None

    def _wait_until_visible(self) -> int:
        backoff = self._backoff()
        while (count := self._count()) is None:
            if not backoff.wait():
                raise StorageError(f"topic {self.name!r} was created, and is not visible after {self._timeout} s")
        return count

    def _backoff(self) -> Backoff:
        return Backoff(_FIRST_WAIT_SECONDS, _LONGEST_WAIT_SECONDS, give_up_after=self._timeout)

    def _warn_of_retention(self) -> None:
        """Warn where the broker will delete records: a log is meant to be replayed from its beginning."""
        resource = self._client.admin.ConfigResource(self._client.admin.ResourceType.TOPIC, self.name)
        try:
            asked = self._admin.describe_configs([resource], request_timeout=self._timeout)
            settings = asked[resource].result(self._timeout + _ANSWER_GRACE_SECONDS)
        except (self._client.KafkaException, FutureTimeoutError):
            return  # it needs a permission of its own, and nothing depends on it
        differing = [
            f"{name}={settings[name].value}" for name, value in _NO_RETENTION.items() if settings[name].value != value
        ]
        if differing:
            _log.warning(
                "topic %r has %s: Kafka will delete records of it, and a new reader will not see them",
                self.name,
                ", ".join(differing),
            )
