"""What is Kafka's own in the metadata log; the contract of all logs is tested elsewhere."""

from __future__ import annotations

import logging
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from penstock.errors import Closed, InvalidInput, NotFound, PartitionOutOfRange, StorageError
from penstock.metalog import PartitionStart
from penstock.metalog.kafka.log import KafkaMetadataLog
from penstock.metalog.subscription import Subscription
from tests.support.kafka_broker import Broker
from tests.support.processes import PATIENCE, Parent, Start
from tests.support.waiting import A_WHILE, Background

NOWHERE = "127.0.0.1:1"  # no process listens there

Open = Callable[..., KafkaMetadataLog]


@pytest.fixture
def open_log(kafka_bootstrap: str, fresh_name: str) -> Iterator[Open]:
    logs: list[KafkaMetadataLog] = []

    def open_log(**options: Any) -> KafkaMetadataLog:
        logs.append(KafkaMetadataLog({"bootstrap.servers": kafka_bootstrap}, fresh_name, **options))
        return logs[-1]

    yield open_log
    for log in logs:
        log.close()


def take(records: Subscription, count: int) -> list[tuple[int, bytes]]:
    found: list[tuple[int, bytes]] = []
    for _ in range(count):
        record = records.poll(PATIENCE)
        assert record is not None, f"only {len(found)} of {count} came"
        found.append((record.offset, record.payload))
    return found


@pytest.mark.parametrize(
    "setting",
    [{"acks": 1}, {"request.required.acks": "0"}, {"enable.idempotence": False}, {"transactional.id": "x"}],
    ids=str,
)
def test_a_config_that_weakens_the_log_is_refused(setting: dict[str, object]) -> None:
    with pytest.raises(InvalidInput, match=next(iter(setting))):
        KafkaMetadataLog({"bootstrap.servers": NOWHERE} | setting, "topic")


@pytest.mark.parametrize("config", [{}, "", 7, {"bootstrap.servers": NOWHERE, "no.such": 1}], ids=str)
def test_what_is_no_config_is_refused(config: Any) -> None:
    with pytest.raises(InvalidInput, match="config"):
        KafkaMetadataLog(config, "topic")


@pytest.mark.parametrize("topic", ["", "a b", "..", "x" * 250, None], ids=repr)
def test_what_is_no_topic_is_refused(topic: Any) -> None:
    with pytest.raises(InvalidInput, match="topic"):
        KafkaMetadataLog(NOWHERE, topic)


def test_a_broker_that_is_not_there_is_a_storage_error() -> None:
    with pytest.raises(StorageError, match="cannot be reached"):
        KafkaMetadataLog(NOWHERE, "topic", timeout=0.3)


def test_a_password_is_in_no_message() -> None:
    config = {"bootstrap.servers": NOWHERE, "sasl.password": "geheim", "security.protocol": "geheim"}
    with pytest.raises(InvalidInput, match=r"\*\*\*") as refused:
        KafkaMetadataLog(config, "topic")
    assert "geheim" not in str(refused.value)
    assert refused.value.__cause__ is None


def test_without_the_extra_it_says_how_to_get_it() -> None:
    code = """
import sys
sys.modules["confluent_kafka"] = None
from penstock.metalog.kafka.log import KafkaMetadataLog
try:
    KafkaMetadataLog("127.0.0.1:1", "topic")
except ValueError as error:
    print(type(error).__name__, error)
"""
    text = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert text.startswith("InvalidInput")
    assert "pip install 'penstock[kafka]'" in text


def test_a_topic_that_is_not_there_is_not_made_unasked(open_log: Open) -> None:
    for _ in range(2):  # looking has not created it either
        with pytest.raises(NotFound, match="create=True"):
            open_log()


def test_a_topic_that_is_made_needs_a_count(open_log: Open) -> None:
    with pytest.raises(InvalidInput, match="partition_count"):
        open_log(create=True)


def test_a_topic_that_is_there_says_its_count(open_log: Open, caplog: pytest.LogCaptureFixture) -> None:
    open_log(create=True, partition_count=3)
    assert open_log(create=True).partition_count == open_log().partition_count == 3
    with pytest.raises(InvalidInput, match="must be 3"):
        open_log(partition_count=4)
    assert "delete records" not in caplog.text


def test_a_topic_with_more_partitions_than_a_log_may_have_is_refused(
    open_log: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_log(create=True, partition_count=3)
    monkeypatch.setattr("penstock.metalog.kafka.topic.MAX_PARTITIONS", 2)
    with pytest.raises(InvalidInput, match="has 3 partitions, and a metadata log has at most 2"):
        open_log()


def test_logs_that_create_a_topic_together_all_open_it(open_log: Open) -> None:
    opening = [Background(lambda: open_log(create=True, partition_count=2)) for _ in range(4)]
    assert [one.result().partition_count for one in opening] == [2] * 4


def test_two_logs_on_one_topic_are_one_log(open_log: Open) -> None:
    one, other = open_log(create=True, partition_count=2), open_log()
    assert [one.publish(1, b"a"), other.publish(1, b""), one.publish(1, b"c")] == [0, 1, 2]
    assert other.high_water_marks() == [0, 3]
    with other.subscribe([PartitionStart(1)]) as records:
        assert take(records, 3) == [(0, b"a"), (1, b""), (2, b"c")]


def test_a_start_beyond_the_end_waits_for_it(open_log: Open) -> None:
    log = open_log(create=True, partition_count=1)
    log.publish(0, b"0")
    with log.subscribe([PartitionStart(0, 3)]) as records:
        assert records.poll(A_WHILE) is None
        for number in range(1, 5):
            log.publish(0, b"%d" % number)
        assert take(records, 2) == [(3, b"3"), (4, b"4")]


def test_what_kafka_deleted_is_skipped_and_said(
    open_log: Open, kafka_bootstrap: str, fresh_name: str, caplog: pytest.LogCaptureFixture
) -> None:
    from confluent_kafka import TopicPartition
    from confluent_kafka.admin import AdminClient

    log = open_log(create=True, partition_count=1)
    for number in range(4):
        log.publish(0, b"%d" % number)
    admin = AdminClient({"bootstrap.servers": kafka_bootstrap})
    for deleted in admin.delete_records([TopicPartition(fresh_name, 0, 2)]).values():
        deleted.result(PATIENCE)
    with caplog.at_level(logging.WARNING), log.subscribe([PartitionStart(0)]) as records:
        assert take(records, 2) == [(2, b"2"), (3, b"3")]
    assert "2 records before it were deleted" in caplog.text


def test_a_topic_that_was_deleted_is_not_found(open_log: Open, kafka_bootstrap: str, fresh_name: str) -> None:
    from confluent_kafka.admin import AdminClient

    log = open_log(create=True, partition_count=1, timeout=5)
    admin = AdminClient({"bootstrap.servers": kafka_bootstrap})
    admin.delete_topics([fresh_name])[fresh_name].result(PATIENCE)
    until = time.monotonic() + PATIENCE

    def ask() -> None:
        while time.monotonic() < until:  # a broker says that it is deleted a little before it is
            log.high_water_marks()

    with pytest.raises(NotFound):
        ask()
    with log.subscribe([PartitionStart(0)]) as records, pytest.raises(NotFound):
        records.poll(PATIENCE)


def test_a_payload_that_is_too_large_is_refused_and_the_next_is_taken(open_log: Open) -> None:
    log = open_log(create=True, partition_count=1)
    with pytest.raises(InvalidInput, match=r"max\.message\.bytes"):
        log.publish(0, bytes(2_000_000))
    with pytest.raises(PartitionOutOfRange):
        log.publish(1, b"x")
    assert log.publish(0, b"x") == 0


def test_a_closed_log_says_so_and_ends_its_subscriptions(open_log: Open) -> None:
    log = open_log(create=True, partition_count=1)
    with log.subscribe([PartitionStart(0)]) as records:
        waiting = Background(lambda: records.poll(None))
        log.close()
        log.close()
        with pytest.raises(Closed):
            waiting.result()
    for call in (lambda: log.publish(0, b""), log.high_water_marks, lambda: log.subscribe([])):
        with pytest.raises(Closed):
            call()


def test_a_partition_added_again_begins_where_it_is_said(open_log: Open) -> None:
    log = open_log(create=True, partition_count=2)
    for number in range(100):
        log.publish(0, b"%d" % number)
    with log.subscribe([PartitionStart(0, 50), PartitionStart(1)]) as records:
        for start, again in ((50, 0), (0, 99), (99, 30)):
            assert take(records, 1) == [(start, b"%d" % start)]
            records.remove(0)
            records.add(PartitionStart(0, again))
        assert take(records, 70) == [(number, b"%d" % number) for number in range(30, 100)]


def publish_until_killed(parent: Parent, bootstrap: str, topic: str) -> None:
    log = KafkaMetadataLog(bootstrap, topic)
    number = 0
    while True:
        parent.tell((log.publish(0, b"%d" % number), number))
        number += 1


def test_what_a_killed_process_published_stays(
    open_log: Open, start: Start, kafka_bootstrap: str, fresh_name: str
) -> None:
    log = open_log(create=True, partition_count=1)
    child = start(publish_until_killed, kafka_bootstrap, fresh_name)
    published = [child.hear() for _ in range(200)]
    child.kill()
    written = log.high_water_marks()[0]
    with log.subscribe([PartitionStart(0)]) as records:
        there = take(records, written)
    assert there == [(number, b"%d" % number) for number in range(written)]
    assert published == [(number, number) for number in range(200)]


def test_a_broker_that_is_killed_and_comes_back_loses_and_doubles_nothing(
    mortal_broker: Broker, fresh_name: str
) -> None:
    with (
        KafkaMetadataLog(mortal_broker.bootstrap, fresh_name, create=True, partition_count=1, timeout=60) as log,
        log.subscribe([PartitionStart(0)]) as records,
    ):
        half = [log.publish(0, b"%d" % number) for number in range(50)]
        assert take(records, 20) == [(number, b"%d" % number) for number in range(20)]
        publishing = Background(lambda: [log.publish(0, b"%d" % number) for number in range(50, 400)])
        taking = Background(lambda: take(records, 380))
        mortal_broker.kill()
        assert not publishing.has_ended_within(A_WHILE)
        mortal_broker.start()
        assert half + publishing.result() == list(range(400))
        assert taking.result() == [(number, b"%d" % number) for number in range(20, 400)]
        assert log.high_water_marks() == [400]


def test_a_broker_that_comes_back_is_asked_again_where_a_new_subscription_begins(
    mortal_broker: Broker, fresh_name: str
) -> None:
    with KafkaMetadataLog(mortal_broker.bootstrap, fresh_name, create=True, partition_count=1, timeout=60) as log:
        log.publish(0, b"before")
        mortal_broker.kill()
        mortal_broker.start()
        with log.subscribe([PartitionStart(0)]) as records:  # the first to ask: it meets the old leader's epoch
            assert take(records, 1) == [(0, b"before")]
