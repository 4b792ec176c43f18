"""What the processes of these tests do, and what they tell of it."""

from __future__ import annotations

import random
from dataclasses import dataclass

from penstock.buffer import Consumer, Producer, ProducerConfig, WriteHandle
from penstock.errors import InvalidInput
from penstock.storage import LocalStore
from tests.support.processes import Parent

QUICK = ProducerConfig(flush_interval=0.005)


@dataclass(frozen=True)
class Announced:
    """The producer is about to make its calls up to this number, which is not among them."""

    stop: int


@dataclass(frozen=True)
class Done:
    """The handles of all calls up to this number, which is not among them, are done."""

    stop: int


@dataclass(frozen=True)
class Got:
    """The consumer was handed a batch; whoever hears this is its sink."""

    sequence: int
    entries: list[bytes]


@dataclass(frozen=True)
class Acked:
    """An ack returned. It is durable if it was written to the manifest before that."""

    sequence: int
    is_durable: bool


@dataclass(frozen=True)
class Refused:
    """No consumer was made: the manifest has gone on further than its caller remembers."""


@dataclass(frozen=True)
class Finished:
    """The process has done its work."""


Word = Announced | Done | Got | Acked | Refused | Finished


def produce(parent: Parent, root: str, name: str, count: int, seed: int) -> None:
    """Produce `name-0`, `name-1`, and so on, waiting for the handles of a few dozen at a time."""
    dice = random.Random(seed)
    with Producer(LocalStore(root), QUICK) as producer:
        done = 0
        while done < count:
            stop = min(done + dice.randint(1, 60), count)
            parent.tell(Announced(stop))
            handles: list[WriteHandle] = [producer.produce(f"{name}-{number}") for number in range(done, stop)]
            for handle in handles:
                handle.result()
            done = stop
            parent.tell(Done(done))
    _leave(parent, Finished())


def consume(parent: Parent, root: str, last_acked: int | None, seed: int) -> None:
    """Tell of every batch, and only then ack it, one by one or several at a time; until told to stop."""
    dice = random.Random(seed)
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
                chance = dice.random()
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


def _leave(parent: Parent, word: Word) -> None:
    """Say the last word, and stay: whoever may be killed at any time must not be gone before."""
    parent.tell(word)
    parent.wait()
