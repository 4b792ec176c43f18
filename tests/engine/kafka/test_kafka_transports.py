"""`KafkaReceiver` and `KafkaSender` against a real broker."""

from __future__ import annotations

import pickle
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any, Protocol

import pytest

from penstock import Record
from penstock.engine import BatchEngine, EngineConfig, KafkaReceiver, KafkaSender, WorkBatch
from penstock.errors import Closed, InvalidInput, SinkFailed, StorageError
from tests.support.kafka_topics import create_topic, fill
from tests.support.processes import PATIENCE

NOWHERE = "127.0.0.1:1"


class Open(Protocol):
    def __call__(self, topic: str, **more: Any) -> KafkaReceiver: ...


@pytest.fixture
def receiver(kafka_bootstrap: str) -> Iterator[Open]:
    with ExitStack() as opened:

        def open_one(topic: str, **more: Any) -> KafkaReceiver:
            return opened.enter_context(KafkaReceiver(kafka_bootstrap, topic, "readers", **more))

        yield open_one


def receive(receiver: KafkaReceiver, count: int, **limits: Any) -> list[WorkBatch]:
    """Blocks until there are so many records."""
    blocks, until = list[WorkBatch](), time.monotonic() + PATIENCE
    while sum(map(len, blocks)) < count:
        assert time.monotonic() < until, f"only {blocks} came"
        block = receiver.recv(limits.get("max_records", 100), max_bytes=limits.get("max_bytes"), timeout=1)
        blocks += [block] if len(block) else []
    return blocks


def values(blocks: list[WorkBatch]) -> list[bytes]:
    return [record.value for block in blocks for record in block.records]


def test_what_a_sender_sends_comes_out_of_a_receiver_whole(
    kafka_bootstrap: str, fresh_name: str, receiver: Open
) -> None:
    create_topic(kafka_bootstrap, fresh_name)
    sent = [
        Record(b"plain", timestamp_ms=1_000),
        Record(b"all", b"key", (("a", b"1"), ("a", b"\xff")), 1_700_000_000_000),
        Record(b"", b"gone", (("kafka-tombstone", b""),), 2_000),
        Record(b"", timestamp_ms=3_000),
    ]
    with KafkaSender(kafka_bootstrap, fresh_name) as sender:
        sender.send(sent)
        sender.send([])
    (block,) = receive(receiver(fresh_name), 4)
    assert block.records == sent
    assert block.commit_tokens == ((fresh_name, 0, 3),)
    assert pickle.loads(pickle.dumps(block.commit_tokens)) == block.commit_tokens


def test_only_what_was_committed_is_not_received_again(kafka_bootstrap: str, fresh_name: str, receiver: Open) -> None:
    create_topic(kafka_bootstrap, fresh_name)
    fill(kafka_bootstrap, fresh_name, [b"%d" % number for number in range(10)])
    with KafkaReceiver(kafka_bootstrap, fresh_name, "readers") as first:
        blocks = receive(first, 6, max_records=3)
        first.commit(blocks[0].commit_tokens)
        first.rewind()
        assert values(receive(first, 7)) == [b"%d" % number for number in range(3, 10)]
    assert values(receive(receiver(fresh_name), 7)) == [b"%d" % number for number in range(3, 10)]


def test_a_block_has_at_most_so_many_bytes_but_one_record_at_least(
    kafka_bootstrap: str, fresh_name: str, receiver: Open
) -> None:
    create_topic(kafka_bootstrap, fresh_name)
    fill(kafka_bootstrap, fresh_name, [b"x" * 10] * 5)
    blocks = receive(receiver(fresh_name), 5, max_bytes=25)
    assert max(map(len, blocks)) == 2
    fill(kafka_bootstrap, fresh_name, [b"x" * 100])


def test_a_block_that_fails_comes_again_in_the_next_run(kafka_bootstrap: str, fresh_name: str, receiver: Open) -> None:
    create_topic(kafka_bootstrap, fresh_name)
    fill(kafka_bootstrap, fresh_name, [b"a", b"b"])
    source, sunk = receiver(fresh_name), list[bytes]()
    engine = BatchEngine(EngineConfig(recv_timeout=10, max_records=1))

    def refuse_b(batch: WorkBatch) -> None:
        if batch.records[0].value == b"b" and len(sunk) == 1:
            sunk.append(b"refused")
            raise ValueError("not now")
        sunk.append(batch.records[0].value)

    with pytest.raises(SinkFailed):
        engine.run(source, lambda batch: batch, refuse_b)
    engine.run(source, lambda batch: batch, refuse_b, until_idle=True)
    assert sunk == [b"a", b"refused", b"b"]


def test_a_commit_for_a_partition_that_another_member_has_raises_and_its_records_come_there(
    kafka_bootstrap: str, fresh_name: str, receiver: Open
) -> None:
    create_topic(kafka_bootstrap, fresh_name, 2)
    for partition in range(2):
        fill(kafka_bootstrap, fresh_name, [b"%d" % partition], partition)
    quick = {"heartbeat.interval.ms": 200, "session.timeout.ms": 6000}
    first = receiver(fresh_name, config=quick)
    tokens = {token.partition: token for block in receive(first, 2) for token in block.commit_tokens}
    second, found, until = receiver(fresh_name, config=quick), list[Any](), time.monotonic() + PATIENCE
    while not found:
        assert time.monotonic() < until, "the second member gets nothing"
        first.recv(100, timeout=0.1)
        block = second.recv(100, timeout=0.1)
        found += zip(block.records, block.commit_tokens, strict=True)
    record, (_, partition, offset) = found[0]
    assert (record.value, offset) == (b"%d" % partition, 0)
    with pytest.raises(StorageError, match="was given to another member"):
        first.commit([tokens[partition]])
    second.commit([(fresh_name, partition, offset)])


def test_a_topic_that_does_not_exist_is_an_error(kafka_bootstrap: str, fresh_name: str, receiver: Open) -> None:
    source = receiver(fresh_name, config={"topic.metadata.propagation.max.ms": 100})
    with pytest.raises(StorageError, match="nknown topic"):
        receive(source, 1)


def test_a_record_that_the_broker_refuses_is_raised(kafka_bootstrap: str, fresh_name: str) -> None:
    create_topic(kafka_bootstrap, fresh_name)
    with (
        KafkaSender(kafka_bootstrap, fresh_name, config={"message.max.bytes": 10_000_000}) as sender,
        pytest.raises(StorageError, match="1 of 2 records were not delivered"),
    ):
        sender.send([Record(b"small"), Record(b"x" * 5_000_000)])


def test_a_sender_that_reaches_no_broker_gives_up(fresh_name: str) -> None:
    with KafkaSender(NOWHERE, fresh_name, timeout=0.5) as sender, pytest.raises(StorageError):
        sender.send([Record(b"x")])


@pytest.mark.parametrize(
    ("more", "what"),
    [
        ({"config": {"enable.auto.commit": True}}, "enable.auto.commit"),
        ({"start": "middle"}, "start must be"),
        ({"topics": []}, "topics must be"),
        ({"group": ""}, "group must be"),
        ({"config": {"no.such.setting": "x"}}, "refused by Kafka's client"),
    ],
)
def test_what_a_receiver_cannot_use_is_refused(more: dict[str, Any], what: str) -> None:
    given = {"topics": "topic", "group": "group"} | more
    with pytest.raises(InvalidInput, match=what):
        KafkaReceiver(NOWHERE, **given)


def test_after_close_both_refuse(fresh_name: str) -> None:
    receiver, sender = KafkaReceiver(NOWHERE, "topic", "group"), KafkaSender(NOWHERE, "topic")
    for one in (receiver, sender):
        one.close()
        one.close()
    assert not receiver.healthy
    for call in (lambda: receiver.recv(1), lambda: receiver.commit([]), lambda: sender.send([])):
        with pytest.raises(Closed):
            call()
