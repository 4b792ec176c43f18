"""A clock that was wrong for a moment: what it named is deleted once it is acked, and delays nothing else.

On version 2 names of the far future are closed as a range of times, in which nothing new is named; a grace period after
that they are deleted.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from penstock.buffer import GarbageCollector, Producer
from penstock.buffer.groups import Groups
from penstock.buffer.locations import location_time, segment_time
from penstock.storage import MemoryStore
from tests.buffer.collector.buffer_with_clock import DAY, FOLDER, MILLISECOND, Buffer, Time
from tests.buffer.manifest.world import SMALL
from tests.support.dated_buffer import GRACE, MANIFEST, NOW_MS, OWNER, named_at
from tests.support.filled_buffers import each_alone
from tests.support.hooked_store import HookedStore
from tests.support.waiting import Gate

MANIFESTS = ["native"]
TEN_YEARS = 3_650 * DAY
HOUR = 3_600.0


@pytest.fixture
def buffer(fresh_name: str) -> Buffer:
    """A buffer whose store has the same clock as everything else."""
    time = Time()
    return Buffer(MemoryStore(fresh_name, clock=time), time)


@pytest.fixture
def small(buffer: Buffer) -> Buffer:
    """The same, with a head that is full with a few entries."""
    return replace(buffer, limits=SMALL)


def wrong_at(time: Time, *calls: int, by: float = TEN_YEARS) -> Callable[[], float]:
    """A clock that is wrong for some of its calls."""
    numbers: Iterator[int] = iter(range(1_000_000))

    def clock() -> float:
        return time() + (by if next(numbers) in calls else 0.0)

    return clock


def settle(buffer: Buffer) -> None:
    """Run cycles until each has seen what the one before has done."""
    for _ in range(3):
        buffer.collect()
        buffer.time.passes(GRACE)


def test_a_producers_clock_that_is_ten_years_ahead_for_one_call_keeps_no_object_for_long(buffer: Buffer) -> None:
    wrong_by = TEN_YEARS
    with Producer(buffer.store, each_alone(), clock=lambda: buffer.time() + wrong_by) as producer:
        producer.produce(b"ahead").result()
        wrong_by = 0.0
        for number in range(150):
            buffer.time.passes(1)
            producer.produce(b"%d" % number).result()
    buffer.ack(151)
    for _ in range(30):
        buffer.collect()
        buffer.time.passes(DAY)
    assert len(buffer.data()) == 0


def test_objects_that_a_corrected_clock_has_dated_ten_years_ahead_are_deleted_once_they_are_acked(
    buffer: Buffer,
) -> None:
    (first,) = buffer.produce(b"one", skew=TEN_YEARS)
    buffer.time.passes(1)
    (second,) = buffer.produce(b"two", skew=TEN_YEARS)
    buffer.time.passes(2 * GRACE)
    buffer.produce(b"three")
    buffer.ack(1)
    buffer.time.passes(2 * GRACE)
    settle(buffer)
    assert first.location not in buffer.data()
    assert second.location in buffer.data()
    buffer.ack(2)
    buffer.time.passes(2 * GRACE)
    settle(buffer)
    assert buffer.data() == set()


def test_a_reader_has_a_grace_period_after_the_range_is_closed(buffer: Buffer) -> None:
    (ahead,) = buffer.produce(b"ahead", skew=TEN_YEARS)
    buffer.ack(1)
    buffer.time.passes(GRACE)
    buffer.ack(0)  # the manifest is written once more
    buffer.collect()
    assert buffer.head.closed == ((location_time(ahead.location), location_time(ahead.location)),)
    buffer.time.passes(GRACE - MILLISECOND)
    buffer.collect()
    assert ahead.location in buffer.data()
    buffer.time.passes(MILLISECOND)
    buffer.collect()
    assert ahead.location not in buffer.data()


def test_segments_that_are_dated_ten_years_ahead_are_deleted_as_well(small: Buffer) -> None:
    small.produce(*[b"%d" % number for number in range(12)], skew=TEN_YEARS)
    assert any((segment_time(path.removeprefix(FOLDER)) or 0) > NOW_MS + DAY * 1000 for path in small.segments())
    small.ack(12)
    small.time.passes(2 * GRACE)
    small.produce(b"after")
    small.ack(1)
    settle(small)
    small.time.passes(2 * GRACE)
    settle(small)
    assert small.paths() == {MANIFEST, OWNER}


def test_what_is_dated_ahead_and_named_in_a_segment_is_not_closed(small: Buffer) -> None:
    written = small.produce(*[b"%d" % number for number in range(9)], skew=TEN_YEARS)
    orphan = small.orphan(TEN_YEARS + HOUR / 2)
    Groups(small.store).create("audit")
    small.ack(9)
    small.time.passes(2 * GRACE)
    small.produce(b"now")
    settle(small)
    assert {one.location for one in written} <= small.data()
    assert all(small.head.may_name(location_time(one.location)) for one in written)
    assert orphan in small.data()  # within an hour after them: it waits for them
    small.ack(10, "audit")
    small.ack(1)
    small.time.passes(2 * GRACE)
    settle(small)
    assert small.data() == set()


def test_a_producer_that_is_paused_with_an_object_of_the_future_writes_it_again(buffer: Buffer) -> None:
    buffer.produce(b"before")
    buffer.ack(1)
    before = buffer.data()
    hooked, gate = HookedStore(buffer.store), Gate()
    hooked.after("write data", gate, times=1)
    with Producer(hooked, each_alone(), clock=wrong_at(buffer.time, 0, 1)) as producer:
        handle = producer.produce(b"paused")
        gate.wait_for_arrival()
        (paused,) = buffer.data() - before
        assert (location_time(paused) or 0) > NOW_MS + DAY * 1000
        buffer.time.passes(2 * GRACE)
        buffer.ack(0)
        settle(buffer)
        assert paused not in buffer.data()
        gate.open()
        written = handle.result()
    assert written.location != paused
    assert buffer.rest() == [b"paused"]


def test_a_producer_whose_clock_comes_to_a_closed_range_names_after_it(buffer: Buffer) -> None:
    buffer.orphan(TEN_YEARS)
    buffer.orphan(TEN_YEARS + HOUR / 2, 1)
    buffer.produce(b"before")
    buffer.ack(1)
    buffer.time.passes(2 * GRACE)
    buffer.ack(0)
    settle(buffer)
    ((first, last),) = buffer.head.closed
    assert last - first == HOUR * 500
    skew = (first - NOW_MS) / 1000 - buffer.time.seconds
    (written,) = buffer.produce(b"then", skew=skew)
    assert location_time(written.location) == last + 1


def test_a_floor_that_passes_a_closed_range_removes_it(buffer: Buffer) -> None:
    buffer.orphan(40 * DAY)
    buffer.produce(b"before")
    buffer.ack(1)
    buffer.time.passes(2 * GRACE)
    buffer.ack(0)
    settle(buffer)
    assert [last - first for first, last in buffer.head.closed] == [0]
    buffer.time.passes(41 * DAY)
    buffer.produce(b"after")
    buffer.ack(1)
    buffer.time.passes(2 * GRACE)
    buffer.ack(0)
    settle(buffer)
    assert buffer.head.closed == ()
    assert buffer.data() == set()


def test_what_was_written_less_than_a_grace_period_ago_is_not_closed(buffer: Buffer) -> None:
    buffer.produce(b"before")
    buffer.orphan(TEN_YEARS)
    buffer.time.passes(GRACE - 1)
    buffer.ack(1)
    buffer.collect()
    assert buffer.head.closed == ()


def test_more_ranges_than_a_head_can_hold_wait_and_a_warning_says_so(
    buffer: Buffer, caplog: pytest.LogCaptureFixture
) -> None:
    orphans = {buffer.orphan(TEN_YEARS + number * DAY, number) for number in range(70)}
    buffer.produce(b"before")
    buffer.ack(1)
    buffer.time.passes(2 * GRACE)
    buffer.ack(0)
    with caplog.at_level(logging.WARNING, "penstock.buffer.collector"):
        settle(buffer)
    assert len(buffer.head.closed) == 64
    assert len(buffer.data() & orphans) == 6
    assert "the head has no place for more" in caplog.text


def test_a_collectors_clock_that_is_ten_years_ahead_for_one_cycle_delays_collecting_for_a_day_at_most(
    buffer: Buffer,
) -> None:
    buffer.produce(b"one")
    buffer.ack(1)
    buffer.time.passes(2 * GRACE)
    buffer.collect(skew=TEN_YEARS)
    assert buffer.head.floor <= NOW_MS + (DAY + 2 * GRACE) * 1000
    for _ in range(3):
        buffer.produce(b"later")
        buffer.ack(1)
        buffer.time.passes(DAY)
    for _ in range(4):
        buffer.collect()
        buffer.time.passes(GRACE)
    assert buffer.data() == set()


def test_a_collector_that_has_a_turn_trusts_its_clock_for_a_grace_period_beyond_the_stores_time(
    buffer: Buffer,
) -> None:
    buffer.produce(b"one")
    buffer.ack(1)
    buffer.time.passes(2 * GRACE)
    wrong = GarbageCollector(buffer.store, clock=lambda: buffer.time() + TEN_YEARS)
    assert wrong.collect_if_due() is not None
    now = round(buffer.time() * 1000)
    assert (buffer.head.floor, buffer.head.floor_set_at) == (now, now + GRACE * 1000)
    buffer.time.passes(2 * GRACE)
    buffer.collect()
    assert buffer.data() == set()


def test_names_of_one_clock_that_stays_ahead_are_one_range_that_grows(buffer: Buffer) -> None:
    for number in range(20):
        buffer.produce(b"%d" % number, skew=TEN_YEARS)
        buffer.ack(1)
        buffer.time.passes(GRACE)
        buffer.collect()
    assert len(buffer.head.closed) == 1
    assert len(buffer.data()) <= 4


def test_a_name_that_is_no_data_name_is_not_dated_ahead(buffer: Buffer) -> None:
    buffer.store.put(f"{MANIFEST}.d/{named_at(NOW_MS + round(TEN_YEARS * 1000))}", b"of another program")
    buffer.produce(b"one")
    buffer.ack(1)
    buffer.time.passes(2 * GRACE)
    buffer.ack(0)
    settle(buffer)
    assert buffer.head.closed == ()
