"""Processes that produce ten times as much as a producer may hold, and report how much their memory grew."""

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

MAX_BYTES = 8 << 20
"""`max_buffered_bytes` of these producers."""

_CONFIG = ProducerConfig(max_buffered_bytes=MAX_BYTES, max_buffered_inputs=1 << 30)  # only bytes limit them
_KIB, _MIB, _MANY = 1 << 10, 1 << 20, 1 << 18
_OBJECT = 48  # bytes that a tiny entry takes at least, as an object of its own
_MOST_ENTRIES = MAX_BYTES // 4  # an entry takes four bytes in an Arrow column, even an empty one

INPUTS: dict[str, Callable[[], Iterable[bytes | list[bytes]]]] = {
    # Three times the limit is enough of these: the number of calls takes the time.
    "a tiny entry a call": lambda: (b"%07d" % number for number in range(3 * MAX_BYTES // _OBJECT)),
    "lists of a few tiny entries": lambda: (
        [b"%07d" % (4 * number + place) for place in range(4)] for number in range(3 * MAX_BYTES // (4 * _OBJECT))
    ),
    "a small entry a call": lambda: (b"x" * 4000 for _ in range(10 * MAX_BYTES // 4000)),
    "an entry a call": lambda: (b"x" * (64 * _KIB) for _ in range(10 * MAX_BYTES // (64 * _KIB))),
    "a large entry a call": lambda: (b"x" * (3 * _MIB) for _ in range(10 * MAX_BYTES // (3 * _MIB))),
    "an entry larger than the limit": lambda: (b"x" * (2 * MAX_BYTES) for _ in range(10)),
    "lists of entries": lambda: ([b"x" * _KIB] * 1024 for _ in range(10 * MAX_BYTES // _MIB)),
    "lists of entries of one byte": lambda: ([b"x"] * _MANY for _ in range(10 * _MOST_ENTRIES // _MANY)),
    "lists of empty entries": lambda: ([b""] * _MANY for _ in range(10 * _MOST_ENTRIES // _MANY)),
}


@dataclass(frozen=True)
class Report:
    """How many calls were accepted and refused, and the bytes by which memory grew at most and in the end."""

    accepted: int
    refused: int
    grown: int
    kept: int


def feed_a_store_that_hangs(parent: Parent, kind: str) -> Report:
    """Produce while no write ends."""
    gate = Gate()
    producer, report = _begin(gate)
    accepted = refused = 0
    for entries in INPUTS[kind]():
        try:
            producer.produce(entries, timeout=0)
        except BackpressureTimeout:
            refused += 1
        else:
            accepted += 1
    gate.wait_for_arrival()  # what was accepted is encoded by now
    answer = report(accepted, refused)
    gate.open()
    producer.close()
    return answer


def feed_a_store_that_fails(parent: Parent, kind: str, keep: bool) -> Report:
    """Produce while every write fails, without asking a handle; `keep` keeps all handles."""
    logging.disable()

    def fail() -> None:
        raise StorageError("the disk is full")

    producer, report = _begin(fail)
    handles: deque[WriteHandle] = deque(maxlen=None if keep else 0)
    for entries in INPUTS[kind]():
        handles.append(producer.produce(entries))
    answer = report(len(handles), 0)
    with suppress(StorageError):
        producer.close()
    return answer


def feed_a_store_that_works(parent: Parent, kind: str) -> Report:
    """Produce while every write succeeds, and flush."""
    producer, report = _begin(lambda: None)
    accepted = 0
    for entries in INPUTS[kind]():
        producer.produce(entries)
        accepted += 1
    producer.flush()
    answer = report(accepted, 0)
    producer.close()
    return answer


def _begin(at_data: Callable[[], object]) -> tuple[Producer, Callable[[int, int], Report]]:
    """A producer after its first use, so that all modules are loaded; and a function that reports."""
    store = HookedStore(open_store("memory://memory-growth"))
    store.before("write data", at_data, skip=1)
    producer = Producer(store, _CONFIG)
    producer.produce(b"warm")
    producer.flush()
    peak, allocated = _peak(), pa.total_allocated_bytes()
    return producer, lambda accepted, refused: Report(
        accepted, refused, _peak() - peak, pa.total_allocated_bytes() - allocated
    )


def _peak() -> int:
    """The peak memory of this process, in bytes."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
