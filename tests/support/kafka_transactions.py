"""A topic with marks of transactions in it, which take offsets and are no messages."""

from __future__ import annotations

from collections.abc import Iterable

from confluent_kafka import Producer


def fill_in_transactions(bootstrap: str, topic: str, blocks: Iterable[tuple[list[bytes], bool]]) -> None:
    """Put blocks of values into partition 0, each in a transaction that is committed or aborted."""
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": topic})
    producer.init_transactions(30)
    for values, is_committed in blocks:
        producer.begin_transaction()
        for value in values:
            producer.produce(topic, value, partition=0)
        assert producer.flush(30) == 0
        if is_committed:
            producer.commit_transaction(30)
        else:
            producer.abort_transaction(30)
