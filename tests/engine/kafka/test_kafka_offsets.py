"""Offsets that are no messages, that are gone, or that a group has not; brokers that are not reached."""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack
from pathlib import Path

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions  # type: ignore[attr-defined]  # they are exported

from penstock.engine import KafkaImport, KafkaPlace, KafkaReceiver, WorkBatch
from penstock.errors import InvalidInput, StorageError
from penstock.storage import ObjectStore, open_store
from tests.support.kafka_broker import Broker, mortal_broker
from tests.support.kafka_topics import create_topic, fill
from tests.support.kafka_transactions import fill_in_transactions
from tests.support.processes import PATIENCE

__all__ = ["mortal_broker"]

NOWHERE = "127.0.0.1:1"


def receive(receiver: KafkaReceiver, count: int, *, most: int = 100) -> list[WorkBatch]:
    """Blocks until there are so many records; each is committed."""
    blocks, until = list[WorkBatch](), time.monotonic() + PATIENCE
    while sum(map(len, blocks)) < count:
        assert time.monotonic() < until, f"only {blocks} came"
        block = receiver.recv(most, timeout=1)
        receiver.commit(block.commit_tokens)
        blocks.append(block)
    return blocks


def values(blocks: list[WorkBatch]) -> list[bytes]:
    return [record.value for block in blocks for record in block.records]


def delete_before(bootstrap: str, topic: str, offset: int) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for deleted in admin.delete_records([TopicPartition(topic, 0, offset)]).values():
        deleted.result(30)


def imported(
    bootstrap: str, topic: str, store: ObjectStore, start: str = "earliest"
) -> tuple[int, dict[int, tuple[int, int]]]:
    """Import to the end; how many events, and from where to where in each partition."""
    with KafkaImport(KafkaPlace(bootstrap, topic), store, group=topic, start=start, until_end=True) as running:
        running.run(lambda: False)
        return running.events, {number: (part.begin, part.appended) for number, part in running.partitions.items()}


@pytest.mark.parametrize("start", ["earliest", "latest"])
def test_a_group_whose_offset_was_deleted_goes_on_at_the_first_record_that_there_is(
    start: str, kafka_bootstrap: str, fresh_name: str
) -> None:
    create_topic(kafka_bootstrap, fresh_name)
    fill(kafka_bootstrap, fresh_name, [b"%d" % number for number in range(10)])
    with KafkaReceiver(kafka_bootstrap, fresh_name, fresh_name) as first:
        receive(first, 4, most=4)
    delete_before(kafka_bootstrap, fresh_name, 7)
    with KafkaReceiver(kafka_bootstrap, fresh_name, fresh_name, start=start) as second:
        assert values(receive(second, 3)) == [b"7", b"8", b"9"]


def test_a_group_that_began_at_the_end_goes_on_there_without_a_commit(kafka_bootstrap: str, fresh_name: str) -> None:
    create_topic(kafka_bootstrap, fresh_name, 2)
    fill(kafka_bootstrap, fresh_name, [b"old"])
    with KafkaReceiver(kafka_bootstrap, fresh_name, fresh_name, start="latest") as first:
        until = time.monotonic() + PATIENCE
        received = list[bytes]()
        while not received:  # it has joined when it receives
            assert time.monotonic() < until
            fill(kafka_bootstrap, fresh_name, [b"new"], 1)
            received = [record.value for record in first.recv(100, timeout=0.2).records]
        assert set(received) == {b"new"}
    fill(kafka_bootstrap, fresh_name, [b"later"])
    with KafkaReceiver(kafka_bootstrap, fresh_name, fresh_name, start="latest") as second:
        assert {b"new", b"later"} <= set(values(receive(second, len(received) + 1)))


def test_marks_of_transactions_and_aborted_records_are_passed_over(
    kafka_bootstrap: str, fresh_name: str, tmp_path: Path
) -> None:
    create_topic(kafka_bootstrap, fresh_name)
    blocks = [([b"%d-%d" % (block, number) for number in range(3)], block % 2 == 0) for block in range(4)]
    fill_in_transactions(kafka_bootstrap, fresh_name, blocks)
    expected = [value for some, is_committed in blocks if is_committed for value in some]
    store = open_store(tmp_path)
    assert imported(kafka_bootstrap, fresh_name, store) == (6, {0: (0, 16)})
    assert imported(kafka_bootstrap, fresh_name, store)[0] == 0
    with KafkaReceiver(kafka_bootstrap, fresh_name, "other") as receiver:
        assert values(receive(receiver, 6, most=2)) == expected


def test_a_partition_that_came_later_is_imported_from_its_first_record(
    kafka_bootstrap: str, fresh_name: str, tmp_path: Path
) -> None:
    create_topic(kafka_bootstrap, fresh_name)
    store = open_store(tmp_path)
    fill(kafka_bootstrap, fresh_name, [b"old"])
    assert imported(kafka_bootstrap, fresh_name, store, "latest") == (0, {0: (1, 1)})
    admin = AdminClient({"bootstrap.servers": kafka_bootstrap})
    admin.create_partitions([NewPartitions(fresh_name, 2)])[fresh_name].result(30)
    fill(kafka_bootstrap, fresh_name, [b"new"], 1)
    assert imported(kafka_bootstrap, fresh_name, store, "latest") == (1, {0: (1, 1), 1: (0, 1)})


@pytest.mark.slow
def test_an_import_that_follows_a_topic_finds_its_new_partitions(
    kafka_bootstrap: str, fresh_name: str, tmp_path: Path
) -> None:
    create_topic(kafka_bootstrap, fresh_name)
    fill(kafka_bootstrap, fresh_name, [b"a", b"b"])
    admin, until = AdminClient({"bootstrap.servers": kafka_bootstrap}), time.monotonic() + PATIENCE
    with KafkaImport(KafkaPlace(kafka_bootstrap, fresh_name), open_store(tmp_path)) as running:

        def on_progress() -> None:
            assert time.monotonic() < until, "the new partition is not imported"
            if running.events == 2 and not added:
                added.append(admin.create_partitions([NewPartitions(fresh_name, 2)])[fresh_name].result(30))
                fill(kafka_bootstrap, fresh_name, [b"c"], 1)

        added = list[object]()
        running.run(lambda: running.events == 3, on_progress)
        assert {number: part.appended for number, part in running.partitions.items()} == {0: 2, 1: 1}


def test_a_header_without_a_value_has_an_empty_one(kafka_bootstrap: str, fresh_name: str) -> None:
    create_topic(kafka_bootstrap, fresh_name)
    producer = Producer({"bootstrap.servers": kafka_bootstrap})
    producer.produce(fresh_name, b"v", key=b"", headers=[("none", None), ("empty", b"")])
    producer.flush(30)
    with KafkaReceiver(kafka_bootstrap, fresh_name, fresh_name) as receiver:
        (record,) = receive(receiver, 1)[-1].records
    assert (record.key, record.headers) == (b"", (("none", b""), ("empty", b"")))


@pytest.mark.slow
def test_a_receiver_that_reaches_no_broker_says_so() -> None:
    with KafkaReceiver(NOWHERE, "topic", "group", unreachable_after=1) as receiver:
        with pytest.raises(StorageError, match=r"no broker was reached in \d+ s: .*Connection refused"):
            receive(receiver, 1)
        assert not receiver.healthy


def test_a_login_that_is_refused_is_an_error_without_the_password(kafka_bootstrap: str) -> None:
    login = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanisms": "PLAIN", "sasl.username": "me"}
    config = login | {"sasl.password": "hunter22"}
    with (
        KafkaReceiver(kafka_bootstrap, "topic", "group", config=config, unreachable_after=1) as receiver,
        pytest.raises(StorageError, match="SASL") as refused,
    ):
        receive(receiver, 1)
    assert "hunter22" not in str(refused.value)


@pytest.mark.slow
def test_an_import_whose_broker_goes_says_so(mortal_broker: Broker, fresh_name: str, tmp_path: Path) -> None:
    bootstrap = mortal_broker.bootstrap
    create_topic(bootstrap, fresh_name)
    fill(bootstrap, fresh_name, [b"a"])
    kills = ExitStack()
    kills.callback(mortal_broker.kill)
    place, store, until = KafkaPlace(bootstrap, fresh_name), open_store(tmp_path), time.monotonic() + PATIENCE
    with (
        kills,
        KafkaImport(place, store, unreachable_after=1) as running,
        pytest.raises(StorageError, match="no broker was reached"),
    ):
        running.run(lambda: time.monotonic() > until, lambda: kills.close() if running.events else None)
    mortal_broker.start()
    assert imported(bootstrap, fresh_name, open_store(tmp_path / "again")) == (1, {0: (0, 1)})


@pytest.mark.parametrize("seconds", [-1, 0, "1"])
def test_a_time_that_is_none_is_refused(seconds: float) -> None:
    with pytest.raises(InvalidInput):
        KafkaReceiver(NOWHERE, "topic", "group", unreachable_after=seconds)


@pytest.mark.slow
def test_a_member_that_was_too_slow_commits_nothing_and_receives_again(kafka_bootstrap: str, fresh_name: str) -> None:
    create_topic(kafka_bootstrap, fresh_name)
    fill(kafka_bootstrap, fresh_name, [b"a", b"b"])
    config = {"session.timeout.ms": 6000, "max.poll.interval.ms": 6000, "heartbeat.interval.ms": 200}
    with KafkaReceiver(kafka_bootstrap, fresh_name, fresh_name, config=config) as receiver:
        blocks, until = list[WorkBatch](), time.monotonic() + PATIENCE
        while not blocks:
            assert time.monotonic() < until
            block = receiver.recv(1, timeout=1)
            blocks += [block] if len(block) else []
        threading.Event().wait(9)  # no receive for longer than max.poll.interval.ms, as in a sink that takes long
        with pytest.raises(StorageError, match="offsets were not committed"):
            receiver.commit(blocks[0].commit_tokens)
        receiver.rewind()
        assert values(receive(receiver, 2)) == [b"a", b"b"]
