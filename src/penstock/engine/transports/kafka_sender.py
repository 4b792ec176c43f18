"""`KafkaSender`: a topic of Kafka as a place where records go."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any

from penstock.core import Closing, check_seconds
from penstock.engine.transports.kafka_records import message_of
from penstock.engine.work_batch import WorkBatch
from penstock.errors import InvalidInput, OutcomeUnknown, StorageError
from penstock.metalog import KafkaConfig, kafka_client
from penstock.records import Record

_POLL_SECONDS = 0.1
_REPORT_GRACE_SECONDS = 5.0  # that the report of a delivery may be late


class KafkaSender(Closing):
    """Sends records into a topic, and returns when all of them are acknowledged. Extra: `kafka`.

    `config` has more settings of confluent-kafka. The producer is idempotent and waits for all replicas in sync;
    settings that would weaken this are refused. Keys, headers and timestamps are kept; a record with the header
    `kafka-tombstone` and an empty value becomes a message without a value. `timeout` is how many seconds a delivery may
    take, unless the config sets `delivery.timeout.ms`. For one thread at a time.

    Raises `InvalidInput` for a config that is refused, and where the extra is not installed.

    ```text
    with KafkaSender("broker:9092", "events") as sender:
        sender.send([Record(b"hello", key=b"greeting")])
    ```
    """

    _instead_in_child = "make a KafkaSender here"

    def __init__(
        self, bootstrap: str, topic: str, *, config: Mapping[str, Any] | None = None, timeout: float = 60.0
    ) -> None:
        super().__init__()
        check_seconds("timeout", timeout, most=3600)
        if not topic or type(topic) is not str:
            raise InvalidInput(f"topic must be the name of a topic, not {topic!r}")
        self._client = kafka_client("KafkaSender")
        self._config = KafkaConfig.checked({"bootstrap.servers": bootstrap} | dict(config or {}), timeout)
        self._topic = topic
        self._producer = self._config.producer()

    def __repr__(self) -> str:
        return f"KafkaSender({self._topic!r})"

    def send(self, records: WorkBatch | Iterable[Record]) -> None:
        """Send records, or those of a batch, and return when all are delivered; no records are no work.

        Raises `StorageError` with the first failure: then some of them may be in the topic and some not, and a caller
        that sends all of them again sends some twice. Raises `OutcomeUnknown` where no report came in time.
        """
        self._check_process()
        self._check_open()
        batch = records if isinstance(records, WorkBatch) else WorkBatch(records)
        outcomes = _Outcomes()
        for record in batch.records:
            self._produce(message_of(record), outcomes.note)
        until = time.monotonic() + self._config.delivery_timeout + _REPORT_GRACE_SECONDS
        while outcomes.count < len(batch) and time.monotonic() < until:
            self._producer.poll(_POLL_SECONDS)
        if outcomes.failure is not None:
            raise StorageError(
                f"{outcomes.failed} of {len(batch)} records were not delivered to the topic {self._topic!r}: "
                f"{self._config.without_secrets(outcomes.failure.str())}; send the block again"
            )
        if outcomes.count < len(batch):
            raise OutcomeUnknown(
                f"of {len(batch) - outcomes.count} of {len(batch)} records it is not known if they are in the topic "
                f"{self._topic!r}: Kafka's client has not reported in {self._config.delivery_timeout:g} s"
            )

    def close(self) -> None:
        """Close the producer. A second `close` does nothing."""
        self._check_process()
        self._is_closed = True
        self._producer.flush(0)

    def _produce(self, message: dict[str, Any], note: Any) -> None:
        while True:
            try:
                self._producer.produce(self._topic, on_delivery=note, **message)
            except BufferError:  # the client's memory is full: deliveries make room
                self._producer.poll(_POLL_SECONDS)
            except self._client.KafkaException as error:
                raise StorageError(
                    f"a record was refused for the topic {self._topic!r}: "
                    f"{self._config.without_secrets(error.args[0].str())}"
                ) from None
            else:
                return


class _Outcomes:
    """How the deliveries of one send ended."""

    def __init__(self) -> None:
        self.count = self.failed = 0
        self.failure: Any = None

    def note(self, error: Any, _message: Any) -> None:
        if error is not None:
            self.failed += 1
            self.failure = self.failure or error
        self.count += 1
