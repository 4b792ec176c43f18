"""The floor of version 2 with slow producers, wrong clocks, and names without a time."""

from __future__ import annotations

import logging

import pytest

from penstock.buffer import (
    Producer,
)
from penstock.buffer.locations import location_time
from tests.buffer.collector.buffer_with_clock import DAY, MILLISECOND, Buffer
from tests.support.dated_buffer import GRACE, GRACE_MS, MANIFEST, NOW_MS, PREFIX, DatedBuffer, named_at
from tests.support.filled_buffers import each_alone
from tests.support.hooked_store import HookedStore
from tests.support.waiting import Gate

MANIFESTS = ["native"]


# Producers that are slow, or whose clock is wrong.


def test_a_producer_that_is_paused_over_the_grace_period_writes_its_object_again(dated: DatedBuffer) -> None:
    buffer = Buffer(dated.store)
    buffer.produce(b"before")
    buffer.ack(1)
    before = buffer.data()
    hooked, gate = HookedStore(buffer.store), Gate()
    hooked.after("write data", gate, times=1)
    with Producer(hooked, each_alone(), clock=buffer.time) as producer:
        handle = producer.produce(b"paused")
        gate.wait_for_arrival()
        (paused,) = buffer.data() - before
        buffer.time.passes(10 * GRACE)
        buffer.collect_all()
        assert paused not in buffer.data()
        gate.open()
        written = handle.result()
    assert written.location != paused
    assert (location_time(written.location) or 0) > buffer.head.floor
    assert buffer.data() == {written.location}
    assert buffer.rest() == [b"paused"]


def test_a_producer_that_is_paused_right_before_its_write_loses_and_writes_its_object_again(buffer: Buffer) -> None:
    buffer.produce(b"before")
    buffer.ack(1)
    hooked, gate = HookedStore(buffer.store), Gate()
    hooked.before("write manifest", gate, times=1)
    with Producer(hooked, each_alone(), clock=buffer.time) as producer:
        handle = producer.produce(b"paused")
        gate.wait_for_arrival()
        buffer.time.passes(10 * GRACE)
        buffer.collect_all()
        assert buffer.data() == set()
        gate.open()
        written = handle.result()
    assert hooked.count("write data") == 2
    assert buffer.data() == {written.location}
    assert buffer.rest() == [b"paused"]


def test_a_producer_whose_clock_is_a_day_behind_works_and_then_names_above_the_floor_at_once(buffer: Buffer) -> None:
    buffer.orphan(-GRACE - 1)
    buffer.produce(b"before")
    buffer.ack(1)
    buffer.collect()
    floor = buffer.head.floor
    hooked = HookedStore(buffer.store)
    with Producer(hooked, each_alone(), clock=lambda: buffer.time() - DAY) as producer:
        written = [producer.produce(b"first").result()]
        assert hooked.count("write data") == 1  # above the floor, which it read together with the owner
        written += [producer.produce(b"%d" % number).result() for number in range(3)]
        assert hooked.count("write data") == 4
    assert all((location_time(one.location) or 0) > floor for one in written)
    buffer.time.passes(GRACE)
    buffer.collect()
    assert buffer.rest() == [b"first", b"0", b"1", b"2"]


def test_what_a_clock_a_day_behind_has_enqueued_before_there_was_a_floor_is_kept(buffer: Buffer) -> None:
    (written,) = buffer.produce(b"behind", skew=-DAY)
    buffer.orphan(-GRACE - 1)
    buffer.orphan(-2 * DAY)
    buffer.collect_all()
    assert buffer.head.floor <= NOW_MS - round(DAY * 1000)
    assert written.location in buffer.data()
    assert buffer.rest() == [b"behind"]


def test_a_collector_whose_clock_is_a_day_ahead_loses_nothing_and_delays_the_others_by_that_day(buffer: Buffer) -> None:
    (queued,) = buffer.produce(b"queued")
    buffer.ack(1)
    buffer.collect(skew=DAY)
    assert buffer.head.floor == NOW_MS + round(DAY * 1000) - GRACE_MS
    hooked = HookedStore(buffer.store)
    with Producer(hooked, each_alone(), clock=buffer.time) as producer:
        written = producer.produce(b"now").result()
    assert hooked.count("write data") == 1  # above that floor, though it is below by all clocks
    buffer.time.passes(DAY + GRACE - MILLISECOND)
    buffer.collect()
    assert queued.location in buffer.data()
    buffer.time.passes(MILLISECOND)
    buffer.collect()
    assert buffer.data() == {written.location}
    assert buffer.rest() == [b"now"]


def test_ulids_of_the_future_only_delay_and_a_warning_says_so(buffer: Buffer, caplog: pytest.LogCaptureFixture) -> None:
    (ahead,) = buffer.produce(b"ahead", skew=DAY)
    buffer.ack(1)
    old = buffer.orphan(-GRACE - 1)
    with caplog.at_level(logging.WARNING, "penstock.buffer.collector"):
        buffer.collect_all()
    assert buffer.data() == {ahead.location}
    assert old not in buffer.data()
    assert "1 objects of" in caplog.text
    assert "ahead of this clock" in caplog.text
    buffer.time.passes(DAY)
    caplog.clear()
    buffer.collect_all()
    assert buffer.data() == set()
    assert not caplog.records


def test_clocks_that_differ_by_less_than_a_grace_period_are_not_warned_of(
    buffer: Buffer, caplog: pytest.LogCaptureFixture
) -> None:
    buffer.produce(b"ahead", skew=GRACE)
    with caplog.at_level(logging.WARNING, "penstock"):
        buffer.collect()
    assert not caplog.records


# Which names count.


def test_a_location_without_a_ulid_is_never_collected_and_holds_nothing_back(dated_memory: DatedBuffer) -> None:
    kept = {f"{PREFIX}/by-hand.batch", f"{PREFIX}/deeper/{named_at(0)}.batch", f"other/{named_at(0)}.batch"}
    buffer = Buffer(dated_memory.store)
    dated_memory.write(*kept)
    dated_memory.enqueue(f"{PREFIX}/by-hand.batch")
    old = buffer.orphan(-GRACE - 1)
    buffer.time.passes(10 * GRACE)
    buffer.collect_all()
    assert old not in buffer.data()
    assert buffer.data() == kept
    buffer.ack(1)
    buffer.collect_all()
    assert buffer.data() == kept


STRANGE = [
    f"{MANIFEST}.d/notes",
    f"{MANIFEST}.d/{named_at(0)}.seg",
    f"{MANIFEST}.d/{0:019}-{named_at(0)}.seg",
    f"{MANIFEST}.d/{0:020}-{named_at(0)}.seg.tmp",
    f"{MANIFEST}.d/{0:020}-{named_at(0).replace('0', 'l')}.seg",
    f"{MANIFEST}.d/deeper/{0:020}-{named_at(0)}.seg",
    f"{PREFIX}/other.d/{0:020}-{named_at(0)}.seg",
    f"{PREFIX}/{0:020}-{named_at(0)}.seg",
]


def test_what_is_no_segment_of_this_manifest_is_left_alone(buffer: Buffer) -> None:
    for path in STRANGE:
        buffer.store.put(path, b"of another program")
    orphan = f"{MANIFEST}.d/{0:020}-{named_at(0)}.seg"
    buffer.store.put(orphan, b"of a lost race")
    buffer.produce(b"entry")
    buffer.collect_all()
    assert orphan not in buffer.paths()
    assert set(STRANGE) <= buffer.paths()
