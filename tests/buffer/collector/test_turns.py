"""Of all collectors of a buffer, one runs a cycle in each interval. Safety does not depend on it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest

from penstock.buffer import ConsumerConfig, GarbageCollector, Producer
from penstock.errors import StorageError
from penstock.storage import MemoryStore, ObjectMeta, ObjectStore
from penstock.storage.object_store import PathRange
from penstock.testing import Fault, FaultyStore
from tests.buffer.collector.buffer_with_clock import DAY, Buffer, Time
from tests.support.dated_buffer import GRACE, MANIFEST
from tests.support.minimal_stores import RecordingStore

INTERVAL = ConsumerConfig().gc_interval
MARK = "ingest/.collected"


class Uptime:
    """An uptime clock that a test moves on."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def buffer(fresh_name: str) -> Buffer:
    """A buffer with an entry, whose store has the same clock as everything else."""
    time = Time()
    buffer = Buffer(MemoryStore(fresh_name, clock=time), time)
    buffer.produce(b"one")
    return buffer


def collector(
    buffer: Buffer, store: ObjectStore | None = None, uptime: Uptime | None = None, skew: float = 0.0
) -> GarbageCollector:
    """The collector of another process."""
    clock = lambda: buffer.time() + skew  # noqa: E731
    return GarbageCollector(store or buffer.store, clock=clock, uptime=uptime or Uptime())


def is_run(one: GarbageCollector) -> bool:
    return one.collect_if_due() is not None


def test_the_first_of_a_buffer_is_due_and_leaves_a_mark(buffer: Buffer) -> None:
    assert is_run(collector(buffer))
    assert MARK in buffer.paths()


def test_without_a_manifest_there_is_nothing_to_do_and_no_mark(fresh_name: str) -> None:
    store = MemoryStore(fresh_name)
    assert not is_run(GarbageCollector(store))
    assert list(store.list_objects()) == []


def test_another_process_is_not_due_until_the_manifest_is_an_interval_younger_than_the_mark(buffer: Buffer) -> None:
    assert is_run(collector(buffer))
    buffer.time.passes(INTERVAL - 0.001)
    buffer.produce(b"two")
    assert not is_run(collector(buffer))
    buffer.time.passes(0.001)
    buffer.produce(b"three")
    assert is_run(collector(buffer))
    assert not is_run(collector(buffer))


@pytest.mark.parametrize("skew", [-10 * DAY, 10 * DAY])
def test_no_hosts_clock_decides_whether_it_is_due(buffer: Buffer, skew: float) -> None:
    assert is_run(collector(buffer, skew=skew))
    assert not is_run(collector(buffer, skew=skew))
    buffer.time.passes(INTERVAL)
    buffer.produce(b"two")
    assert is_run(collector(buffer, skew=skew))


def test_a_process_that_sees_the_same_mark_for_an_interval_takes_over_from_one_that_died(buffer: Buffer) -> None:
    assert is_run(collector(buffer))  # which dies then; and the manifest is not written any more
    uptime = Uptime()
    waiting = collector(buffer, uptime=uptime)
    assert not is_run(waiting)
    uptime.now += INTERVAL - 0.001
    assert not is_run(waiting)
    uptime.now += 0.001
    assert is_run(waiting)
    assert not is_run(waiting)
    uptime.now += INTERVAL
    assert is_run(waiting)


@pytest.mark.parametrize("wrong_by", [3_650 * DAY, 2 * DAY])
def test_a_mark_that_the_stores_clock_has_dated_far_ahead_does_not_keep_short_processes_from_collecting(
    fresh_name: str, wrong_by: float
) -> None:
    time, ahead = Time(), [0.0]
    buffer = Buffer(MemoryStore(fresh_name, clock=lambda: time() + ahead[0]), time)
    buffer.produce(b"one")
    ahead[0] = wrong_by  # for this one cycle
    assert is_run(collector(buffer))
    ahead[0] = 0.0
    buffer.time.passes(INTERVAL)
    buffer.produce(b"two")
    assert is_run(collector(buffer))
    assert not is_run(collector(buffer))  # the mark has the right date again


def test_of_many_processes_that_wait_for_the_same_interval_one_runs(buffer: Buffer) -> None:
    uptime = Uptime()
    many = [collector(buffer, uptime=uptime) for _ in range(10)]
    for _ in range(20):
        assert sum(map(is_run, many)) <= 1
        uptime.now += INTERVAL
    assert sum(map(is_run, many)) == 1


def test_a_collector_that_loses_the_mark_to_another_does_not_run(buffer: Buffer) -> None:
    def another(store: ObjectStore, _: str) -> None:
        assert is_run(collector(buffer))

    faulty = FaultyStore(buffer.store, rates={}, third_party=another)
    faulty.inject(Fault.THIRD_PARTY_BEFORE, operation="put_if_absent", path=MARK)
    assert not is_run(collector(buffer, faulty))
    assert not faulty.planned


@pytest.mark.parametrize("fault", [Fault.ERROR_BEFORE, Fault.ERROR_AFTER])
def test_a_mark_that_cannot_be_written_does_not_keep_a_collector_from_collecting(buffer: Buffer, fault: Fault) -> None:
    faulty = FaultyStore(buffer.store, rates={})
    faulty.inject(fault, operation="put_if_absent", path=MARK)
    assert is_run(collector(buffer, faulty))
    assert not faulty.planned


def test_a_store_that_cannot_be_read_is_an_error_and_takes_no_turn(buffer: Buffer) -> None:
    faulty = FaultyStore(buffer.store, rates={})
    faulty.inject(Fault.READ_ERROR, operation="get", path=MARK)
    with pytest.raises(StorageError):
        collector(buffer, faulty).collect_if_due()
    assert MARK not in buffer.paths()


def test_a_cycle_by_hand_takes_no_turn_and_needs_none(buffer: Buffer) -> None:
    assert is_run(collector(buffer))
    watched = RecordingStore(buffer.store)
    GarbageCollector(watched, clock=buffer.time).collect_once()
    assert MARK not in {path for _, path in watched.calls}


def test_cycles_in_turns_set_the_floor_and_apply_it(buffer: Buffer) -> None:
    buffer.ack(1)
    uptime = Uptime()
    one = collector(buffer, uptime=uptime)
    for _ in range(10):
        one.collect_if_due()
        buffer.time.passes(GRACE)
        uptime.now += GRACE
        buffer.ack(0)  # version 1 goes by the manifest's time
    assert buffer.data() == set()


def test_a_mark_is_no_segment_and_no_data(buffer: Buffer) -> None:
    assert is_run(collector(buffer))
    buffer.ack(1)
    buffer.time.passes(10 * GRACE)
    buffer.ack(0)
    buffer.collect_all()
    assert buffer.data() == set()
    assert MARK in buffer.paths()


# What a cycle in turn lists.


class Ranges(MemoryStore):
    """Records each listing, and the number of objects in it."""

    listed: list[tuple[str, int]]

    def list_objects(self, prefix: str = "") -> Iterator[ObjectMeta]:
        return self._recorded("all of " + prefix, list(super().list_objects(prefix)))

    def list_ranges(self, prefix: str, ranges: Sequence[PathRange]) -> Iterator[ObjectMeta]:
        return self._recorded("a part of " + prefix, list(super().list_ranges(prefix, ranges)))

    def _recorded(self, what: str, found: list[ObjectMeta]) -> Iterator[ObjectMeta]:
        self.listed.append((what, len(found)))
        return iter(found)


def test_a_cycle_in_turn_lists_what_may_be_deleted_and_not_what_is_queued(fresh_name: str, manifest: str) -> None:
    time = Time()
    store = Ranges(fresh_name, clock=time)
    store.listed = []
    buffer = Buffer(store, time)
    buffer.produce(*[b"%d" % number for number in range(30)])
    old = {buffer.orphan(-10 * GRACE, number) for number in range(3)}
    uptime = Uptime()
    one = collector(buffer, uptime=uptime)
    for _ in range(3):
        one.collect_if_due()
        buffer.time.passes(GRACE)
        uptime.now += GRACE
    if manifest == "native":
        assert {what for what, _ in store.listed} == {"a part of ingest", f"all of {MANIFEST}.d"}
        assert max(count for what, count in store.listed if "part" in what) == 3
        assert not old & buffer.data()
    else:
        assert {what for what, _ in store.listed} == {"all of ingest"}
    with Producer(store, clock=time) as producer:
        producer.produce(b"still there").result()
