"""Processes that try to put ten times as much into a producer as it may hold, and say how much they grew by that."""

from __future__ import annotations

import logging
import resource
import sys
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass

import pyarrow as pa

from penstock import Producer, ProducerConfig, WriteHandle, open_store
from penstock.errors import BackpressureTimeout, StorageError
from tests.support.hooked_store import HookedStore
from tests.support.processes import Parent
from tests.support.waiting import Gate

ROOM = 8 << 20
"""`max_buffered_bytes` of these producers."""

_CONFIG = ProducerConfig(max_buffered_bytes=ROOM, max_buffered_inputs=1 << 30)  # bytes alone limit them
_KIB, _MIB, _MANY = 1 << 10, 1 << 20, 1 << 18
_OBJECT = 48  # bytes that a tiny entry takes at least, as an object of its own
_MOST_ENTRIES = ROOM // 4  # a place in an Arrow column costs four bytes, with or without anything in it

INPUTS: dict[str, Callable[[], Iterable[bytes | list[bytes]]]] = {
    # Three times the room is enough of these: it is the number of calls that takes time.
    "a tiny entry a call": lambda: (b"%07d" % number for number in range(3 * ROOM // _OBJECT)),
    "lists of a few tiny entries": lambda: (
        [b"%07d" % (4 * number + place) for place in range(4)] for number in range(3 * ROOM // (4 * _OBJECT))
    ),
    "a small entry a call": lambda: (b"x" * 4000 for _ in range(10 * ROOM // 4000)),
    "an entry a call": lambda: (b"x" * (64 * _KIB) for _ in range(10 * ROOM // (64 * _KIB))),
    "a large entry a call": lambda: (b"x" * (3 * _MIB) for _ in range(10 * ROOM // (3 * _MIB))),
    "an entry larger than the room": lambda: (b"x" * (2 * ROOM) for _ in range(10)),
    "lists of entries": lambda: ([b"x" * _KIB] * 1024 for _ in range(10 * ROOM // _MIB)),
    "lists of entries of one byte": lambda: ([b"x"] * _MANY for _ in range(10 * _MOST_ENTRIES // _MANY)),
    "lists of empty entries": lambda: ([b""] * _MANY for _ in range(10 * _MOST_ENTRIES // _MANY)),
}


@dataclass(frozen=True)
class Report:
    """How many calls were taken and refused, by how many bytes the process grew at most, and what is left of that."""

    taken: int
    refused: int
    grown: int
    left: int


def feed_a_store_that_hangs(parent: Parent, kind: str) -> Report:
    """Produce while nothing gets through."""
    gate = Gate()
    producer, report = _begin(gate)
    taken = refused = 0
    for given in INPUTS[kind]():
        try:
            producer.produce(given, timeout=0)
        except BackpressureTimeout:
            refused += 1
        else:
            taken += 1
    gate.wait_for_somebody()  # what was taken is encoded by now
    answer = report(taken, refused)
    gate.open()
    producer.close()
    return answer


def feed_a_store_that_refuses(parent: Parent, kind: str, keep: bool) -> Report:
    """Produce while every object is refused, and never ask a handle; perhaps keep them all."""
    logging.disable()

    def refuse() -> None:
        raise StorageError("the disk is full")

    producer, report = _begin(refuse)
    handles: deque[WriteHandle] = deque(maxlen=None if keep else 0)
    for given in INPUTS[kind]():
        handles.append(producer.produce(given))
    answer = report(len(handles), 0)
    with suppress(StorageError):
        producer.close()
    return answer


def feed_a_store_that_works(parent: Parent, kind: str) -> Report:
    """Produce while everything gets through, and flush."""
    producer, report = _begin(lambda: None)
    taken = 0
    for given in INPUTS[kind]():
        producer.produce(given)
        taken += 1
    producer.flush()
    answer = report(taken, 0)
    producer.close()
    return answer


def _begin(at_data: Callable[[], object]) -> tuple[Producer, Callable[[int, int], Report]]:
    """A producer that has been used, so that whatever is loaded at the first use is loaded; and how to report of it."""
    store = HookedStore(open_store("memory://hoarding"))
    store.before("write data", at_data, skip=1)
    producer = Producer(store, _CONFIG)
    producer.produce(b"warm")
    producer.flush()
    peak, allocated = _peak(), pa.total_allocated_bytes()
    return producer, lambda taken, refused: Report(
        taken, refused, _peak() - peak, pa.total_allocated_bytes() - allocated
    )


def _peak() -> int:
    """The most memory that this process ever had, in bytes."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
