"""What worker processes do, and the messages that they send."""

from __future__ import annotations

import random
from dataclasses import dataclass

from penstock.buffer import Consumer, Producer, ProducerConfig, WriteHandle
from penstock.errors import InvalidInput
from penstock.storage import LocalStore
from tests.support.processes import Parent


def quick() -> ProducerConfig:
    return ProducerConfig(flush_interval=0.005)


@dataclass(frozen=True)
class Announced:
    """The producer is about to make its calls up to this number, exclusive."""

    stop: int


@dataclass(frozen=True)
class Done:
    """The handles of all calls up to this number, exclusive, are done."""

    stop: int


@dataclass(frozen=True)
class Got:
    """The consumer read a batch; the test that receives this message is its sink."""

    sequence: int
    entries: list[bytes]


@dataclass(frozen=True)
class Acked:
    """An ack returned. It is durable if it was written to the manifest before that."""

    sequence: int
    is_durable: bool


@dataclass(frozen=True)
class Refused:
    """The consumer could not start: more is acked in the manifest than its caller remembers."""


@dataclass(frozen=True)
class Finished:
    """The process has done its work."""


Message = Announced | Done | Got | Acked | Refused | Finished


def produce(parent: Parent, root: str, name: str, count: int, seed: int) -> None:
    """Produce `name-0`, `name-1`, and so on, and wait for the handles of a few dozen at a time."""
    seeded = random.Random(seed)
    with Producer(LocalStore(root), quick()) as producer:
        done = 0
        while done < count:
            stop = min(done + seeded.randint(1, 60), count)
            parent.tell(Announced(stop))
            handles: list[WriteHandle] = [producer.produce(f"{name}-{number}") for number in range(done, stop)]
            for handle in handles:
                handle.result()
            done = stop
            parent.tell(Done(done))
    _leave(parent, Finished())


def consume(parent: Parent, root: str, last_acked: int | None, seed: int) -> None:
    """Send every batch to the test, and only then ack it, one by one or several at a time, until the test says stop."""
    seeded = random.Random(seed)
    try:
        consumer = Consumer(LocalStore(root), last_acked_sequence=last_acked)
    except InvalidInput:
        _leave(parent, Refused())
        return
    unacked: list[int] = []
    with consumer:
        while not parent.wants():
            for batch in consumer.follow(timeout=0.02):
                parent.tell(Got(batch.sequence, batch.entries))
                unacked.append(batch.sequence)
                chance = seeded.random()
                if chance < 0.4:
                    consumer.ack_through(unacked[-1])
                    parent.tell(Acked(unacked[-1], is_durable=True))
                    unacked.clear()
                elif chance < 0.8:
                    while unacked:
                        consumer.ack(unacked[0])
                        parent.tell(Acked(unacked.pop(0), is_durable=False))
    parent.wait()
    _leave(parent, Finished())


def _leave(parent: Parent, message: Message) -> None:
    """Send the last message, and stay: a worker that may be killed at any time must not exit before that."""
    parent.tell(message)
    parent.wait()
