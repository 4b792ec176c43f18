"""Topics of a real broker: created with some partitions, filled, and read back."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]  # it is exported


def create_topic(bootstrap: str, name: str, partitions: int = 1) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    # Tests set timestamps that are old: records with them would be deleted, some time after the broker's start.
    topic = NewTopic(name, partitions, 1, config={"retention.ms": "-1"})
    admin.create_topics([topic])[name].result(30)


def fill(bootstrap: str, topic: str, values: Iterable[bytes | None], partition: int = 0, **more: Any) -> None:
    """Put values into a partition, in their order."""
    settings = {"linger.ms": 20, "queue.buffering.max.messages": 1_000_000, "enable.idempotence": True}  # so in order
    producer = Producer({"bootstrap.servers": bootstrap, **settings})
    for number, value in enumerate(values):
        producer.produce(topic, value, partition=partition, **more)
        if number % 50_000 == 0:
            producer.poll(0)
    assert producer.flush(120) == 0
