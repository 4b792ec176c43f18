"""The calls of one producer are enqueued in their order, and by one manifest write at a time."""

from __future__ import annotations

import threading
from functools import partial
from typing import Any

import pytest

from penstock import ObjectStore, WriteHandle
from tests.buffer.producer.conftest import NewGate, OpenProducer, produce_run
from tests.support.buffer_contents import batches, entries, queue
from tests.support.hooked_store import HookedStore
from tests.support.processes import PATIENCE
from tests.support.waiting import A_WHILE, Background, Bell

MANIFESTS = ["native", pytest.param("opendata", marks=pytest.mark.slow)]


def test_many_batches_are_enqueued_in_the_order_they_were_produced(
    store: ObjectStore, open_producer: OpenProducer
) -> None:
    producer = open_producer(store, flush_size_bytes=1)
    for number in range(60):
        producer.produce(b"%d" % number)
    producer.flush()
    assert batches(store) == [[b"%d" % number] for number in range(60)]


def test_nothing_is_enqueued_before_what_was_produced_first(
    store: ObjectStore, open_producer: OpenProducer, new_gate: NewGate
) -> None:
    hooked, gate, written = HookedStore(store), new_gate(), Bell()
    hooked.before("write data", gate, times=1)
    hooked.after("write data", written)
    producer = open_producer(hooked, flush_size_bytes=1)
    producer.produce(b"first")
    gate.wait_for_arrival()
    second = producer.produce(b"second")
    written.wait()
    with pytest.raises(TimeoutError):
        second.result(A_WHILE)
    assert queue(store) == ()
    gate.open()
    assert second.result(PATIENCE).sequence == 1
    assert entries(store) == [b"first", b"second"]


def test_the_oldest_unbroken_run_is_enqueued_in_one_write(
    store: ObjectStore, open_producer: OpenProducer, new_gate: NewGate
) -> None:
    hooked = HookedStore(store)
    handles = produce_run(hooked, open_producer, new_gate(), 6)
    assert [handle.result(PATIENCE).sequence for handle in handles] == [0, 1, 2, 3, 4, 5]
    assert hooked.count("write manifest") == 1
    assert entries(store) == [b"0", b"1", b"2", b"3", b"4", b"5"]


def test_what_is_unbroken_is_enqueued_and_what_is_behind_a_gap_is_not(
    memory: ObjectStore, open_producer: OpenProducer, new_gate: NewGate
) -> None:
    store, gate, written = HookedStore(memory), new_gate(), Bell()
    store.before("write data", gate, skip=1, times=1)
    store.after("write data", written)
    producer = open_producer(store, flush_size_bytes=1)
    first = producer.produce(b"first")
    written.wait()
    producer.produce(b"gap")
    gate.wait_for_arrival()
    third = producer.produce(b"third")
    written.wait()
    first.result(PATIENCE)
    with pytest.raises(TimeoutError):
        third.result(A_WHILE)
    assert entries(memory) == [b"first"]


def test_one_manifest_write_is_under_way_at_a_time(
    store: ObjectStore, open_producer: OpenProducer, new_gate: NewGate
) -> None:
    hooked, gate, written = HookedStore(store), new_gate(), Bell()
    hooked.before("write manifest", gate, times=1)
    hooked.after("write data", written)
    producer = open_producer(hooked, flush_size_bytes=1)
    producer.produce(b"0")
    gate.wait_for_arrival()
    later = [producer.produce(b"1"), producer.produce(b"2")]
    written.wait(times=3)
    with pytest.raises(TimeoutError):
        later[0].result(A_WHILE)
    assert hooked.count("write manifest") == 1
    gate.open()
    assert [handle.result(PATIENCE).sequence for handle in later] == [1, 2]
    assert hooked.count("write manifest") == 2


def test_data_objects_are_written_concurrently(store: ObjectStore, open_producer: OpenProducer) -> None:
    hooked, together = HookedStore(store), threading.Barrier(3)
    hooked.before("write data", lambda: together.wait(PATIENCE))
    producer = open_producer(hooked, flush_size_bytes=1)
    for number in range(3):
        producer.produce(b"%d" % number)
    producer.flush()
    assert entries(store) == [b"0", b"1", b"2"]


@pytest.mark.parametrize("settings", [{"flush_size_bytes": 50}, {"flush_interval": 0.001}], ids=["by size", "by time"])
def test_threads_that_share_a_producer_each_keep_their_order(
    store: ObjectStore, open_producer: OpenProducer, settings: dict[str, Any]
) -> None:
    producer = open_producer(store, max_buffered_inputs=20, **settings)

    def work(name: int) -> list[WriteHandle]:
        given = [f"{name}:{number}" for number in range(100)]
        return [producer.produce([one] if number % 3 else one) for number, one in enumerate(given)]

    working = [Background(partial(work, name)) for name in range(8)]
    handles = [thread.result() for thread in working]
    producer.flush()
    found = [entry.decode() for entry in entries(store)]
    assert len(found) == 800
    for name in range(8):
        assert [one for one in found if one.startswith(f"{name}:")] == [f"{name}:{number}" for number in range(100)]
        places = [handle.result().sequence for handle in handles[name]]
        assert places == sorted(places)


def test_producers_that_share_a_buffer_each_keep_their_order(store: ObjectStore, open_producer: OpenProducer) -> None:
    producers = [open_producer(store, flush_size_bytes=1) for _ in range(3)]
    for number in range(10):
        for name, producer in enumerate(producers):
            producer.produce(b"%d:%d" % (name, number))
    for producer in producers:
        producer.flush()
    found = entries(store)
    assert len(found) == 30
    for name in range(3):
        assert [one for one in found if one.startswith(b"%d:" % name)] == [b"%d:%d" % (name, n) for n in range(10)]
