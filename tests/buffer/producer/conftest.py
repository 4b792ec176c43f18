"""Producers that are closed and gates that are opened when a test ends."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any, Protocol, TypeAlias

import pytest

from penstock import ObjectStore, Producer, ProducerConfig, WriteHandle
from penstock.buffer.producer.capacity import Capacity
from penstock.buffer.producer.producer import seconds_since_boot
from penstock.core.at_exit import forget
from tests.support.call_hooks import hooks_at
from tests.support.hooked_store import HookedStore
from tests.support.waiting import A_WHILE, NEVER, Background, Bell, Gate


class OpenProducer(Protocol):
    """Opens a producer that is closed when the test is over. By default its batches do not end by time."""

    def __call__(
        self,
        where: str | ObjectStore,
        *,
        clock: Callable[[], float] = time.time,
        uptime: Callable[[], float] = seconds_since_boot,
        **settings: Any,
    ) -> Producer: ...


NewGate: TypeAlias = Callable[[], Gate]


@pytest.fixture
def open_producer() -> Iterator[OpenProducer]:
    with ExitStack() as opened:

        def open_one(
            where: str | ObjectStore,
            *,
            clock: Callable[[], float] = time.time,
            uptime: Callable[[], float] = seconds_since_boot,
            **settings: Any,
        ) -> Producer:
            config = ProducerConfig(**{"flush_interval": NEVER, **settings})
            producer = Producer(where, config, clock=clock, uptime=uptime)
            opened.callback(_close, producer)
            return producer

        yield open_one


def _close(producer: Producer) -> None:
    """Close a producer. One that hangs fails its test, and delays neither other tests nor the end of the run."""
    try:
        Background(producer.close).result()
    finally:
        forget(producer)


@pytest.fixture
def new_gate(open_producer: OpenProducer) -> Iterator[NewGate]:
    """Gates that are opened when the test is over, before its producers are closed."""
    gates: list[Gate] = []

    def new() -> Gate:
        gates.append(Gate())
        return gates[-1]

    yield new
    for gate in gates:
        gate.open()


@pytest.fixture
def gate(new_gate: NewGate) -> Gate:
    return new_gate()


def produce_run(hooked: HookedStore, open_producer: OpenProducer, gate: Gate, count: int) -> list[WriteHandle]:
    """Produce batches whose first data object is held up until all others are written: one enqueue has all of them."""
    written = Bell()
    hooked.before("write data", gate, times=1)
    hooked.after("write data", written)
    producer = open_producer(hooked, flush_size_bytes=1)
    handles = [producer.produce(b"0")]
    gate.wait_for_arrival()
    handles += [producer.produce(b"%d" % number) for number in range(1, count)]
    written.wait(times=count - 1)
    with pytest.raises(TimeoutError):
        handles[-1].result(A_WHILE)  # by now all of them are written
    gate.open()
    return handles


@pytest.fixture
def hanging(memory: ObjectStore, gate: Gate) -> HookedStore:
    """A store that does not write data objects until the gate is open."""
    store = HookedStore(memory)
    store.before("write data", gate)
    return store


@pytest.fixture
def in_line() -> Iterator[Bell]:
    """Rings when a call in another thread begins to wait, with the producer's lock held: later calls wait behind it."""
    bell = Bell()
    with hooks_at(Capacity.wait, before=bell):
        yield bell
