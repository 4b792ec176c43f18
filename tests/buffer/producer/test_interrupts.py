"""A Ctrl-C at every line of the producer, one after the other: nothing else is lost, doubled or held up."""

from __future__ import annotations

import itertools
import linecache
import os
from collections.abc import Callable
from types import FrameType
from unittest.mock import ANY

import pytest

import penstock.buffer
from penstock import ObjectStore, Producer, ProducerConfig, Record, open_store
from penstock.buffer.descriptors import Metadata
from tests.support.buffer_contents import payloads, queue
from tests.support.interrupts import Interrupts
from tests.support.manifests import NATIVE_FIRST
from tests.support.waiting import NEVER, Background

MANIFESTS = NATIVE_FIRST
FOLDER = os.path.dirname(penstock.buffer.__file__)


def interrupts_at(number: int) -> Interrupts:
    """An interrupt before a line of the producer.

    Not where a `with` ends: Python looks for signals after calls and jumps, and there is none before the lock is free.
    """

    def is_place(frame: FrameType, event: str) -> bool:
        line = linecache.getline(frame.f_code.co_filename, frame.f_lineno)
        return event == "line" and not line.strip().startswith("with ")

    return Interrupts(number, lambda file: file.startswith(FOLDER), is_place)


WORK: dict[str, Callable[[Producer], object]] = {
    "an entry": lambda producer: producer.produce(b"x"),
    "an entry that fills the batch": lambda producer: producer.produce(b"x" * 100),
    "an entry with metadata": lambda producer: producer.produce(b"x", b"metadata"),
    "a record": lambda producer: producer.produce(Record(b"x", key=b"key")),
    "a list": lambda producer: producer.produce([b"x", b"x"]),
    "columns": lambda producer: producer.produce([b"x"] * 5000),
    "a flush": lambda producer: producer.flush(),
}


@pytest.mark.parametrize("name", WORK)
@pytest.mark.parametrize("count", [1, 600], ids=["then an entry", "then columns"])
def test_a_producer_goes_on_wherever_it_was_interrupted(fresh_name: str, name: str, count: int) -> None:
    for number in itertools.count():
        store = open_store(f"memory://{fresh_name}-{number}")
        producer = Producer(store, ProducerConfig(flush_interval=NEVER, flush_size_bytes=100, format="arrow"))
        producer.produce(b"first")
        interrupts = interrupts_at(number)
        interrupts.during(lambda producer=producer: WORK[name](producer))  # type: ignore[misc]
        second = b"second" if count == 1 else [b"second"] * count
        handles = [producer.produce(second), producer.produce([b"third"], b"of the third")]
        Background(producer.flush).result()
        assert all(handle.done() for handle in handles)
        Background(producer.close).result()
        _check(store, handles[0].result().sequence, count)
        if not interrupts.came:
            assert number > 0
            return


def test_an_interrupted_first_call_leaves_no_empty_batch(fresh_name: str) -> None:
    for number in itertools.count():
        store = open_store(f"memory://{fresh_name}-{number}")
        with Producer(store, ProducerConfig(flush_interval=NEVER)) as producer:
            interrupts = interrupts_at(number)
            interrupts.during(lambda producer=producer: producer.produce(b"x"))  # type: ignore[misc]
            Background(producer.flush).result()
        assert all(payloads(store, entry.location) == [b"x"] for entry in queue(store))
        if not interrupts.came:
            assert number > 0
            return


def _check(store: ObjectStore, sequence: int, count: int) -> None:
    batches = [(entry, payloads(store, entry.location)) for entry in queue(store)]
    assert all(entry.records in {None, len(values)} for entry, values in batches)  # None: version 1 does not know
    whole = [value for _, values in batches for value in values]
    own = [value for value in whole if not value.startswith(b"x")]
    assert own == [b"first", *[b"second"] * count, b"third"]
    assert whole.count(b"x") in {0, 1, 2, 5000}
    assert whole[0] == b"first"
    assert b"second" in next(values for entry, values in batches if entry.sequence == sequence)
    for entry, values in batches:
        places = [item.start_index for item in entry.metadata]
        assert places == sorted(places)
        assert places[0] == 0
        assert places[-1] <= len(values)
        if b"third" in values:
            assert entry.metadata[-1] == Metadata(values.index(b"third"), ANY, b"of the third")
