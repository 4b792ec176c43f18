"""From Kafka into a buffer and from a buffer into Kafka by an engine that is killed over and over, as the broker is.

Nothing is lost, and only what the guide says comes twice: the block under way at a kill, or at a failure.
"""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer as KafkaConsumer
from confluent_kafka import KafkaException, TopicPartition

from penstock import Consumer, ConsumerConfig, Record
from penstock.engine import (
    BatchEngine,
    BufferReceiver,
    BufferSender,
    EngineConfig,
    KafkaReceiver,
    KafkaSender,
    Receiver,
    WorkBatch,
)
from penstock.errors import PenstockError
from tests.support.kafka_broker import Broker, mortal_broker
from tests.support.kafka_topics import create_topic, fill
from tests.support.processes import PATIENCE, Child, Parent, Start

__all__ = ["mortal_broker"]

_PARTITIONS = 4
_QUICK = {"session.timeout.ms": 6000, "heartbeat.interval.ms": 200}
# As one member that comes back: the group does not wait until the killed one is missed.
_READER = _QUICK | {"group.instance.id": "reader"}


def run_until_killed(parent: Parent, receiver: Receiver, send: Callable[[WorkBatch], None], block: int) -> None:
    """Run an engine until this process is killed, also when a run fails; tell of each block and each failure."""

    def sink(batch: WorkBatch) -> None:
        send(batch)
        parent.tell(len(batch))

    while True:  # until the kill
        try:
            BatchEngine(EngineConfig(max_records=block)).run(receiver, lambda batch: batch, sink)
        except PenstockError as error:
            parent.tell(str(error))


def kafka_to_buffer(
    parent: Parent, bootstrap: str, topic: str, buffer: str, block: int, config: dict[str, object]
) -> None:
    with KafkaReceiver(bootstrap, topic, topic, config=config) as receiver, BufferSender(buffer) as sender:
        run_until_killed(parent, receiver, sender.send, block)


def buffer_to_kafka(parent: Parent, bootstrap: str, topic: str, buffer: str, block: int) -> None:
    with BufferReceiver(buffer) as receiver, KafkaSender(bootstrap, topic) as sender:
        run_until_killed(parent, receiver, sender.send, block)


class Interrupted:
    """A worker that is killed, or whose broker is, when it has done its share; and then does the rest."""

    def __init__(self, start: Callable[[], Child], broker: Broker, dice: random.Random) -> None:
        self._start, self._broker, self._dice = start, broker, dice
        self.kills = self.broker_kills = 0
        self.failures = list[str]()

    def run(self, events: int, kills: int, until: Callable[[], bool]) -> None:
        child, done = self._start(), 0
        for number in range(kills):
            goal = events * (number + 1) // (kills + 1)
            while done < goal:
                done += self._hear(child)
            time.sleep(self._dice.random() / 20)  # at any moment of a block
            if number % 4 == 2:
                self._broker.kill()
                self._broker.start()
                self.broker_kills += 1
            else:
                child.kill()
                self.kills += 1
                child = self._start()
        patience = time.monotonic() + PATIENCE
        while not until():
            assert time.monotonic() < patience, f"not all has come; failures: {self.failures}"
            if child.has_spoken():
                self._hear(child)
                patience = time.monotonic() + PATIENCE
        child.kill()

    def _hear(self, child: Child) -> int:
        message = child.hear()
        if isinstance(message, str):
            self.failures.append(message)
            return 0
        return int(message)


def report(what: str, events: int, began: float, run: Interrupted, found: Counter[bytes]) -> None:
    total = sum(found.values())
    print(
        f"{what}: {events} events, {run.kills} kills, {run.broker_kills} of the broker, {len(run.failures)} failed "
        f"runs {sorted({one[:90] for one in run.failures})}, {time.monotonic() - began:.0f} s: "
        f"{total} came, {len(found)} different, {total - len(found)} twice, {events - len(found)} lost"
    )


def value(partition: int, offset: int) -> bytes:
    return b'{"partition":%d,"offset":%d}' % (partition, offset)


LENGTHS = pytest.mark.parametrize(
    ("events", "kills", "block"),
    [
        pytest.param(20_000, 4, 1_000, marks=pytest.mark.slow),
        pytest.param(1_000_000, 12, 10_000, marks=pytest.mark.chaos),
    ],
    ids=["20000", "1000000"],
)


@LENGTHS
@pytest.mark.timeout(1200)
def test_what_a_killed_receiver_had_not_committed_comes_again_and_nothing_is_lost(
    events: int, kills: int, block: int, mortal_broker: Broker, fresh_name: str, tmp_path: Path, start: Start
) -> None:
    create_topic(mortal_broker.bootstrap, fresh_name, _PARTITIONS)
    each, buffer = events // _PARTITIONS, tmp_path / "buffer"
    for partition in range(_PARTITIONS):
        fill(mortal_broker.bootstrap, fresh_name, (value(partition, number) for number in range(each)), partition)
    group = KafkaConsumer({"bootstrap.servers": mortal_broker.bootstrap, "group.id": fresh_name, "log_level": 0})
    began, words = time.monotonic(), (mortal_broker.bootstrap, fresh_name, str(buffer), block)
    run = Interrupted(lambda: start(kafka_to_buffer, *words, _READER), mortal_broker, random.Random(events))
    run.run(events, kills, lambda: committed(group, fresh_name, _PARTITIONS) == events)
    group.close()
    found, last = Counter[bytes](), dict.fromkeys(range(_PARTITIONS), -1)
    for one in entries(buffer):
        at = json.loads(one)
        assert at["offset"] <= last[at["partition"]] + 1, "there is a gap, or the order is another one"
        last[at["partition"]] = at["offset"]
        found[one] += 1
    report("Kafka to buffer", events, began, run, found)
    assert set(found) == {value(partition, number) for partition in range(_PARTITIONS) for number in range(each)}
    assert sum(found.values()) - events <= block * (run.kills + len(run.failures))


@LENGTHS
@pytest.mark.timeout(1200)
def test_what_a_killed_sender_had_not_acked_is_sent_again_and_nothing_is_lost(
    events: int, kills: int, block: int, mortal_broker: Broker, fresh_name: str, tmp_path: Path, start: Start
) -> None:
    create_topic(mortal_broker.bootstrap, fresh_name)
    buffer = tmp_path / "buffer"
    with BufferSender(buffer) as sender:
        for first in range(0, events, block):
            sender.send([Record(b"%d" % number) for number in range(first, first + block)])

    sent = KafkaConsumer({"bootstrap.servers": mortal_broker.bootstrap, "group.id": fresh_name, "log_level": 0})
    place = TopicPartition(fresh_name, 0)

    def is_all_sent() -> bool:
        last = last_value(mortal_broker.bootstrap, fresh_name, sent.get_watermark_offsets(place, 30)[1] - 1)
        return last == events - 1

    began, words = time.monotonic(), (mortal_broker.bootstrap, fresh_name, str(buffer), block)
    run = Interrupted(lambda: start(buffer_to_kafka, *words), mortal_broker, random.Random(events))
    run.run(events, kills, is_all_sent)
    found, last = Counter[bytes](), -1
    for one in messages(mortal_broker.bootstrap, fresh_name, sent.get_watermark_offsets(place, 30)[1]):
        assert int(one) <= last + 1, "there is a gap"
        last = int(one)
        found[one] += 1
    sent.close()
    report("buffer to Kafka", events, began, run, found)
    assert set(found) == {b"%d" % number for number in range(events)}
    assert sum(found.values()) - events <= block * (run.kills + len(run.failures))


def committed(group: KafkaConsumer, topic: str, partitions: int) -> int:
    """How many records a group has committed; -1 where a broker that has just started does not know it yet."""
    try:
        found = group.committed([TopicPartition(topic, partition) for partition in range(partitions)], 30)
    except KafkaException:
        return -1
    return sum(max(one.offset, 0) for one in found)


def entries(buffer: Path) -> Iterator[bytes]:
    with Consumer(buffer, ConsumerConfig(gc=False)) as consumer:
        for batch in consumer:
            yield from batch.entries


def messages(bootstrap: str, topic: str, end: int, begin: int = 0) -> Iterator[bytes]:
    consumer = KafkaConsumer(
        {"bootstrap.servers": bootstrap, "group.id": f"check-{topic}", "enable.auto.commit": False, "log_level": 0}
    )
    consumer.assign([TopicPartition(topic, 0, begin)])
    at = begin
    while at < end:
        got = consumer.consume(min(end - at, 10_000), 30)
        assert got, f"there are {end} messages, and only {at} come"
        for message in got:
            at = (message.offset() or 0) + 1
            yield message.value() or b""
    consumer.close()


def last_value(bootstrap: str, topic: str, offset: int) -> int:
    return -1 if offset < 0 else int(next(messages(bootstrap, topic, offset + 1, offset)))


@pytest.mark.slow
def test_two_members_share_a_topic_while_one_is_killed_and_nothing_is_lost(
    mortal_broker: Broker, fresh_name: str, tmp_path: Path, start: Start
) -> None:
    bootstrap, block, filled = mortal_broker.bootstrap, 50, 0
    create_topic(bootstrap, fresh_name, 2)
    buffers = [tmp_path / name for name in ("first", "second")]
    first, second = (start(kafka_to_buffer, bootstrap, fresh_name, str(one), block, _QUICK) for one in buffers)

    def fill_more() -> None:
        nonlocal filled
        for partition in range(2):
            numbers = range(filled, filled + 200)
            fill(bootstrap, fresh_name, (value(partition, number) for number in numbers), partition)
        filled += 200

    until = time.monotonic() + PATIENCE
    while not (first.has_spoken() and second.has_spoken()):
        assert time.monotonic() < until, "only one of them receives"
        fill_more()
    second.kill()
    fill_more()
    group = KafkaConsumer({"bootstrap.servers": bootstrap, "group.id": fresh_name, "log_level": 0})
    while committed(group, fresh_name, 2) < 2 * filled:
        assert time.monotonic() < until + PATIENCE, "the first one does not get all"
        if first.has_spoken():
            first.hear()
    group.close()
    found = Counter(one for buffer in buffers for one in entries(buffer))
    assert set(found) == {value(partition, number) for partition in range(2) for number in range(filled)}
    assert sum(found.values()) - 2 * filled <= 2 * block  # of the kill, and of the partition that moved before it
