"""A collector disturbs no consumer, no producer and no other collector."""

from __future__ import annotations

import itertools
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from penstock.buffer import Consumer, GcReport, Manifest, Producer
from tests.support.dated_buffer import MANIFEST, NOW, DatedBuffer, data_path
from tests.support.filled_buffers import no_gc
from tests.support.minimal_stores import BusyStore, RecordingStore
from tests.support.processes import PATIENCE


def test_a_consumer_is_not_fenced_by_a_cycle(dated: DatedBuffer) -> None:
    with Producer(dated.store) as producer:
        producer.produce(b"entry")
    consumer = Consumer(dated.store, no_gc())
    dated.write(data_path(1))
    dated.date(MANIFEST, NOW)
    assert dated.collect().deleted == 1
    batch = consumer.next_batch()
    assert batch is not None
    batch.ack()  # this compares epochs
    assert consumer.is_empty


def test_the_epoch_stays_as_it_is(dated: DatedBuffer) -> None:
    Consumer(dated.store, no_gc())
    Consumer(dated.store, no_gc())
    dated.collect()
    assert Manifest.read(dated.store).epoch == 2


def test_a_cycle_makes_no_manifest_where_there_is_none(dated: DatedBuffer) -> None:
    dated.write(data_path(1))
    dated.collect()
    assert dated.paths() == {data_path(1)}


def test_a_producer_goes_on_beside_a_cycle(dated: DatedBuffer) -> None:
    dated.enqueue(data_path(0))
    dated.write(data_path(1))
    with Producer(dated.store) as producer:
        producer.produce(b"before").result()
        dated.collect()
        after = producer.produce(b"after").result()
    assert after.location in dated.data()


def test_more_objects_than_one_call_takes_are_all_deleted(dated: DatedBuffer) -> None:
    dated.enqueue(data_path(0))
    dated.write(*map(data_path, range(502)))
    assert dated.collect() == GcReport(deleted=501, failed=0, kept=1)


@pytest.mark.parametrize(
    ("objects", "calls"), [(1, [1]), (499, [499]), (500, [500]), (501, [500, 1]), (1200, [500, 500, 200])]
)
def test_one_call_deletes_500_objects_at_most(dated_memory: DatedBuffer, objects: int, calls: list[int]) -> None:
    dated_memory.enqueue(data_path(0))
    dated_memory.write(*map(data_path, range(1, objects + 1)))
    dated_memory.set_floor()
    watched = RecordingStore(dated_memory.store)
    dated_memory.collector(watched).collect_once()
    assert [len(paths) for paths in watched.deletes] == calls


def test_no_object_is_deleted_twice_by_a_cycle(dated_memory: DatedBuffer) -> None:
    dated_memory.enqueue(data_path(0))
    dated_memory.write(*map(data_path, range(1, 1201)))
    dated_memory.set_floor()
    watched = RecordingStore(dated_memory.store)
    dated_memory.collector(watched).collect_once()
    assert sorted(itertools.chain(*watched.deletes)) == sorted(map(data_path, range(1, 1201)))


def collect_in_parallel(dated: DatedBuffer) -> list[GcReport]:
    """Run two cycles, each of which has found the same objects before the other deletes any."""
    dated.set_floor()
    both_found = threading.Barrier(2, timeout=PATIENCE)
    collectors = [dated.collector(BusyStore(dated.store, before_deleting=both_found.wait)) for _ in range(2)]
    with ThreadPoolExecutor(2) as pool:
        return [cycle.result(PATIENCE) for cycle in [pool.submit(one.collect_once) for one in collectors]]


def test_two_collectors_at_once_delete_what_one_would_and_both_succeed(dated: DatedBuffer) -> None:
    dated.enqueue(data_path(0))
    dated.write(*map(data_path, range(4)))
    assert collect_in_parallel(dated) == [GcReport(deleted=3, failed=0, kept=1)] * 2
    assert dated.data() == {data_path(0)}


def test_a_cycle_that_is_stopped_ends_after_the_call_that_is_under_way(dated_memory: DatedBuffer) -> None:
    dated_memory.enqueue(data_path(0))
    dated_memory.write(*map(data_path, range(1, 1201)))
    dated_memory.set_floor()
    stopping = threading.Event()
    collector = dated_memory.collector(BusyStore(dated_memory.store, before_deleting=stopping.set))
    collector.collect_if_due(is_stopped=stopping.is_set)
    assert len(dated_memory.data()) == 700
