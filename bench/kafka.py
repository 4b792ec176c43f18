"""The buffer on this machine's disk beside Kafka: one broker on the same machine, through confluent-kafka.

Kafka's producer is idempotent with acks=all, its queue has room for every event, and its topic has one partition, which
gives it the order that a Penstock producer has. The broker syncs nothing; Penstock syncs every object. Kafka's consumer
is connected before the clock runs, and commits nothing; Penstock's is opened within it, and acks every batch.

The broker is the one of `make test-kafka`: `PENSTOCK_KAFKA` names one that runs; else one is started from the jars that
`PENSTOCK_KAFKA_JARS` or `scripts/kafka-jars` names. Where there is none, this is left out, and says why.
"""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from bench.side_by_side import Contest, show
from penstock import Consumer, ConsumerConfig, Producer, ProducerConfig

EVENTS = 1_000_000
EVENT_BYTES = 63
LIST = 1000
ROUNDS = 3
_ROOT = Path(__file__).parent.parent
_KAFKA_PRODUCER: dict[str, Any] = {
    "enable.idempotence": True,
    "acks": "all",
    "queue.buffering.max.messages": EVENTS,
    "queue.buffering.max.kbytes": 1 << 20,
}
_KAFKA_CONSUMER: dict[str, Any] = {
    "group.id": "bench",
    "auto.offset.reset": "earliest",
    "enable.auto.commit": False,
    "queued.min.messages": EVENTS,
    "queued.max.messages.kbytes": 1 << 20,
}


def events() -> list[bytes]:
    return [(b'{"user": %08d, "page": "/products/%06d"}' % (n, n)).ljust(EVENT_BYTES, b" ") for n in range(LIST)]


class Kafka:
    """Topics of their own on one broker."""

    def __init__(self, servers: str) -> None:
        import confluent_kafka
        import confluent_kafka.admin

        self._kafka: Any = confluent_kafka
        self._servers: dict[str, Any] = {"bootstrap.servers": servers, "log_level": 0}
        self._admin = confluent_kafka.admin.AdminClient(self._servers)
        self._names = itertools.count()

    def topic(self) -> str:
        name = f"bench-{os.getpid()}-{next(self._names)}"
        self._admin.create_topics([self._kafka.admin.NewTopic(name, 1, 1)])[name].result()
        return name

    def fill(self, topic: str, some: list[bytes], size: int) -> None:
        producer = self._kafka.Producer(self._servers | _KAFKA_PRODUCER)
        produce = producer.produce
        for number in range(size):
            produce(topic, some[number % LIST])
            if not number % LIST:
                producer.poll(0)
        assert not producer.flush()

    def produced_one_by_one(self, some: list[bytes]) -> Callable[[int], None]:
        return lambda size: self.fill(self.topic(), some, size)

    def produced_in_lists(self, some: list[bytes]) -> Callable[[int], None]:
        def work(size: int) -> None:
            topic, producer = self.topic(), self._kafka.Producer(self._servers | _KAFKA_PRODUCER)
            for _ in range(size // LIST):
                assert producer.produce_batch(topic, [{"value": event} for event in some]) == LIST
                producer.poll(0)
            assert not producer.flush()

        return work

    def consumed(self, topic: str, stack: ExitStack) -> Callable[[int], None]:
        consumer = self._kafka.Consumer(self._servers | _KAFKA_CONSUMER)
        stack.callback(consumer.close)
        beginning = self._kafka.TopicPartition(topic, 0, 0)
        consumer.assign([beginning])
        consumer.consume(1)

        def work(size: int) -> None:
            consumer.assign([beginning])
            count = 0
            while count < size:
                count += len([message.value() for message in consumer.consume(LIST)])

        return work


def produced_one_by_one(root: Path, some: list[bytes]) -> Callable[[int], None]:
    def work(size: int) -> None:
        with Producer(tempfile.mkdtemp(dir=root)) as producer:
            produce = producer.produce
            for number in range(size):
                produce(some[number % LIST])

    return work


def produced_in_lists(root: Path, some: list[bytes]) -> Callable[[int], None]:
    def work(size: int) -> None:
        with Producer(tempfile.mkdtemp(dir=root)) as producer:
            for _ in range(size // LIST):
                producer.produce(some)

    return work


def consumed(place: Path) -> Callable[[int], None]:
    """Each round is a group of its own, so that each finds everything there."""
    groups = itertools.count()

    def work(size: int) -> None:
        count = 0
        with Consumer(place, ConsumerConfig(gc=False, group=f"round-{next(groups)}")) as consumer:
            for batch in consumer:
                count += len(batch.entries)
                consumer.ack(batch.sequence)
        assert count == size

    return work


def _filled(place: Path, some: list[bytes], config: ProducerConfig) -> Path:
    with Producer(place, config) as producer:
        for _ in range(EVENTS // LIST):
            producer.produce(some)
    return place


@contextmanager
def broker(root: Path) -> Iterator[str]:
    """The bootstrap servers of a broker. Raises `RuntimeError` saying why there is none."""
    given = os.environ.get("PENSTOCK_KAFKA")
    if given:
        yield given
        return
    jars = os.environ.get("PENSTOCK_KAFKA_JARS") or _jars()
    from tests.support.kafka_broker import Broker

    try:
        started = Broker(Path(jars), root)
        started.start()
    except (OSError, subprocess.CalledProcessError, RuntimeError) as error:
        raise RuntimeError(f"no broker could be started from {jars}: {error}") from error
    try:
        yield started.bootstrap
    finally:
        started.kill()


def _jars() -> str:
    found = subprocess.run(
        [_ROOT / "scripts/kafka-jars", sys.prefix], cwd=_ROOT, check=False, capture_output=True, text=True
    )
    if found.returncode:
        raise RuntimeError(found.stderr.strip())
    return found.stdout.strip()


def run() -> None:
    some = events()
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as name, ExitStack() as stack:
        root = Path(name)
        (root / "kafka").mkdir()
        try:
            kafka = Kafka(stack.enter_context(broker(root / "kafka")))
        except (ImportError, RuntimeError) as error:
            print(f"The buffer beside Kafka is left out: {error}")
            return
        small = _filled(root / "small", some, ProducerConfig(flush_size_bytes=LIST * EVENT_BYTES))
        large = _filled(root / "large", some, ProducerConfig())
        topic = kafka.topic()
        kafka.fill(topic, some, EVENTS)
        by_kafka = kafka.consumed(topic, stack)
        contests = [
            Contest(
                "produce one event a call",
                EVENTS,
                {
                    "Penstock": produced_one_by_one(root, some),
                    "Kafka": kafka.produced_one_by_one(some),
                },
                " events/s",
                ROUNDS,
            ),
            Contest(
                "produce 1,000 events a call",
                EVENTS,
                {
                    "Penstock": produced_in_lists(root, some),
                    "Kafka, one a call": kafka.produced_one_by_one(some),
                    "Kafka, produce_batch": kafka.produced_in_lists(some),
                },
                " events/s",
                ROUNDS,
            ),
            Contest(
                "consume lists, 1,000 events a batch",
                EVENTS,
                {"Penstock": consumed(small), "Kafka": by_kafka},
                " events/s",
                ROUNDS,
            ),
            Contest(
                "consume lists, batches by default",
                EVENTS,
                {"Penstock": consumed(large), "Kafka": by_kafka},
                " events/s",
                ROUNDS,
            ),
        ]
        show(f"The buffer beside Kafka, {EVENTS:,} events of {EVENT_BYTES} bytes, on a local disk", contests)
