"""A user's configuration of Kafka's client, as each of our clients gets it; credentials stay out of messages."""

from __future__ import annotations

import importlib
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from types import ModuleType
from typing import Any

from penstock.core import get_logger, never_free_in_child
from penstock.errors import InvalidInput

_log = get_logger("penstock.metalog.kafka")  # for the client itself, which logs from threads of its own

# Parts of the names of settings that may hold a credential.
_SECRET = ("password", "secret", "token", "pem", "assertion", "oauthbearer.config", "jaas", "credential")

_ALL = ("all", "-1", -1)
_YES = (True, "true")

# For bounded memory and low latency: Kafka's defaults are for throughput. A user's own settings win.
_CONSUMER_DEFAULTS: Mapping[str, object] = {
    "queued.min.messages": 10_000,
    "queued.max.messages.kbytes": 16_384,
    "fetch.max.bytes": 16_777_216,
    "fetch.wait.max.ms": 100,  # a partition that is added waits for the request under way
    "fetch.queue.backoff.ms": 20,
}
_DEFAULTS: Mapping[str, object] = {"reconnect.backoff.max.ms": 2_000}


def kafka_client(user: str = "KafkaMetadataLog") -> ModuleType:
    """The package `confluent_kafka`, which is imported when the first client is opened."""
    try:
        importlib.import_module("confluent_kafka.admin")
        return importlib.import_module("confluent_kafka")
    except ImportError as missing:
        raise InvalidInput(f"{user} needs the extra `kafka`: pip install 'penstock[kafka]' ({missing})") from None


@dataclass(frozen=True)
class KafkaConfig:
    """A checked configuration. It is never shown: it may hold credentials."""

    _given: Mapping[str, Any] = field(repr=False)
    delivery_timeout: float

    @classmethod
    def checked(cls, given: object, timeout: float) -> KafkaConfig:
        """Accept a mapping of the client's settings, or bootstrap servers; refuse what would weaken the log."""
        if isinstance(given, str):
            given = {"bootstrap.servers": given}
        if not isinstance(given, Mapping) or not all(isinstance(name, str) for name in given):
            raise InvalidInput(
                f"config must be a mapping of Kafka's settings, or bootstrap servers, not {type(given).__name__}"
            )
        config = dict(given)
        if not (config.get("bootstrap.servers") or config.get("metadata.broker.list")):
            raise InvalidInput("config must have `bootstrap.servers`, such as 'broker-1:9092,broker-2:9092'")
        for name in ("acks", "request.required.acks"):
            if config.pop(name, "all") not in _ALL:
                raise InvalidInput(
                    f"{name} must be 'all', which is the default: a record is durable when it is published"
                )
        if config.pop("enable.idempotence", True) not in _YES:
            raise InvalidInput("enable.idempotence must be true, which is the default: a record is in the log once")
        if "transactional.id" in config:
            raise InvalidInput("transactional.id cannot be set: the marks of transactions take offsets, and leave gaps")
        times = [config.pop(name, None) for name in ("delivery.timeout.ms", "message.timeout.ms")]
        milliseconds = next((time for time in times if time is not None), round(timeout * 1000))
        try:
            delivery_timeout = int(milliseconds) / 1000
        except (TypeError, ValueError):
            delivery_timeout = 0.0
        if delivery_timeout <= 0:
            raise InvalidInput(f"delivery.timeout.ms must be a number above 0, not {milliseconds!r}")
        return cls(config, delivery_timeout)

    def admin(self) -> Any:
        """A client that describes topics and creates them."""
        return self._client(kafka_client().admin.AdminClient, self._shared())

    def producer(self) -> Any:
        """A producer whose records are durable, in order, and there once."""
        return self._client(
            kafka_client().Producer,
            self._shared()
            | {
                "acks": "all",
                "enable.idempotence": True,
                "allow.auto.create.topics": False,
                "delivery.timeout.ms": round(self.delivery_timeout * 1000),
            },
        )

    def consumer(self) -> Any:
        """A consumer that is assigned its partitions: it never commits, and joins no group.

        The client needs the name of a group all the same, and asks for its coordinator. A `group.id` in the config is
        a prefix of that name, for brokers that allow only some names.
        """
        prefix = self._given.get("group.id", "penstock-metalog")
        return self._client(
            kafka_client().Consumer,
            dict(_CONSUMER_DEFAULTS)
            | self._shared()
            | {
                "group.id": f"{prefix}-{uuid.uuid4().hex}",
                "enable.auto.commit": False,
                "enable.auto.offset.store": False,
                "enable.partition.eof": False,
                "auto.offset.reset": "error",
                "allow.auto.create.topics": False,
            },
        )

    def group_consumer(self, group: str, start: str, settings: Mapping[str, object]) -> Any:
        """A consumer of a group that commits only what it is told to commit."""
        return self._client(
            kafka_client().Consumer,
            dict(_CONSUMER_DEFAULTS)
            | {"queued.min.messages": 100_000, "queued.max.messages.kbytes": 65_536}
            | self._shared()
            | {
                "group.id": group,
                "enable.auto.commit": False,
                "enable.auto.offset.store": False,
                "auto.offset.reset": start,
                "allow.auto.create.topics": False,
            }
            | dict(settings),
        )

    def without_secrets(self, text: object) -> str:
        """A message of the client, without any credential that it repeats."""
        message = str(text)
        for name, value in self._given.items():
            if value and any(word in name for word in _SECRET):
                message = message.replace(str(value), "***")
        return message

    def _shared(self) -> dict[str, Any]:
        return dict(_DEFAULTS) | dict(self._given)

    def _client(self, kind: type, config: dict[str, Any]) -> Any:
        try:
            client = _with_weak_references(kind)({"logger": _log} | config)
        except (kafka_client().KafkaException, TypeError, ValueError) as error:
            # Not chained: the client's message may repeat a value.
            raise InvalidInput(f"config is refused by Kafka's client: {self.without_secrets(error)}") from None
        never_free_in_child(client, lambda client: [client])
        return client


@cache
def _with_weak_references(kind: type) -> type:
    return type(kind.__name__, (kind,), {})
