"""The floor of version 2 and segments: those below it are deleted, those in use never are."""

from __future__ import annotations

import pytest

from penstock.buffer import (
    Consumer,
)
from penstock.buffer.descriptors import NewEntry
from penstock.buffer.locations import Names, location_time, segment_time
from penstock.buffer.producer.block_appender import BlockAppender
from penstock.errors import Fenced
from penstock.records import values_to_arrow
from penstock.testing import Fault, FaultyStore
from tests.buffer.collector.buffer_with_clock import DAY, FOLDER, Buffer
from tests.support.dated_buffer import GRACE, MANIFEST, OWNER
from tests.support.enqueuing import enqueue
from tests.support.filled_buffers import no_gc
from tests.support.hooked_store import HookedStore
from tests.support.waiting import Background, Gate

MANIFESTS = ["native"]


def test_segments_and_index_segments_below_the_floor_are_collected_and_those_in_use_never(small: Buffer) -> None:
    small.fill(60)
    assert max(reference.level for reference in small.head.segments) >= 1
    everything = small.segments()
    small.ack(45)
    small.time.passes(10 * GRACE)
    small.collect_all()
    assert small.named() <= small.paths()
    assert len(small.segments()) < len(everything) / 2
    assert len(small.data()) < 60 / 2
    assert small.rest() == [b"%d" % number for number in range(45, 60)]


def test_a_queue_of_many_segments_that_is_drained_leaves_none(small: Buffer) -> None:
    small.fill(40)
    small.ack(40)
    small.time.passes(10 * GRACE)
    small.collect_all()
    assert small.paths() == {MANIFEST, OWNER}


def test_an_old_queue_of_many_segments_loses_nothing(small: Buffer) -> None:
    small.fill(40)
    named = small.named()
    assert len(named & small.segments()) > 10
    small.time.passes(100 * GRACE)
    small.collect_all()
    assert named <= small.paths()
    assert small.rest() == [b"%d" % number for number in range(40)]


def test_a_segment_that_is_sealed_by_a_clock_a_day_behind_is_above_the_floor(small: Buffer) -> None:
    small.produce(b"0", b"1", b"2")
    small.orphan(-GRACE - 1)
    small.collect()
    (late,) = small.produce(b"3", skew=-DAY)
    (reference,) = small.head.segments
    assert reference.oldest >= small.head.floor
    assert (location_time(late.location) or 0) > small.head.floor
    small.time.passes(GRACE)
    small.collect()
    assert small.rest() == [b"0", b"1", b"2", b"3"]


def test_a_tail_that_is_sealed_by_a_host_a_day_behind_which_wrote_no_data_is_above_the_floor(small: Buffer) -> None:
    small.produce(b"0", b"1", b"2")
    small.orphan(-GRACE - 1)
    small.collect()
    written = BlockAppender(small.store, clock=small.time).write(values_to_arrow([b"3"]))
    enqueue(small.queue(Names(lambda: small.time() - DAY)), [NewEntry(written.location, ())])
    (reference,) = small.head.segments
    assert (segment_time(reference.name) or 0) > small.head.floor
    small.time.passes(GRACE)
    small.collect()
    assert small.rest() == [b"0", b"1", b"2", b"3"]


def test_an_orphan_segment_of_a_lost_race_is_deleted_by_the_collector_only(small: Buffer) -> None:
    small.produce(b"0", b"1", b"2")
    hooked, gate = HookedStore(small.store), Gate()
    hooked.before("write manifest", gate, skip=1, times=1)  # the first write is the segment's
    loser = Background(lambda: small.produce(b"loser", store=hooked))
    gate.wait_for_arrival()
    (orphan,) = small.segments()
    small.produce(b"winner")  # seals the same tail, under a name of its own
    gate.open()
    assert [one.sequence for one in loser.result()] == [4]
    live = {f"{FOLDER}{reference.name}" for reference in small.head.segments}
    assert orphan not in live
    assert small.segments() == live | {orphan}
    assert hooked.count("delete") == 0
    small.ack(5)
    small.time.passes(10 * GRACE)
    small.collect_all()
    assert small.segments() == set()


def test_after_a_lost_reply_the_segment_is_in_use_and_stays(small: Buffer) -> None:
    small.produce(b"0", b"1", b"2")
    small.orphan(-GRACE - 1)
    faulty = FaultyStore(small.store, rates={})
    faulty.inject(Fault.ERROR_AFTER, operation="put_if_match", path=MANIFEST)
    assert [one.sequence for one in small.produce(b"3", store=faulty)] == [3]
    assert not faulty.planned
    assert small.segments() == {f"{FOLDER}{reference.name}" for reference in small.head.segments}
    small.time.passes(10 * GRACE)
    small.collect_all()
    assert small.rest() == [b"0", b"1", b"2", b"3"]


def test_readers_whose_segment_was_collected_while_they_were_paused_get_fenced(
    small: Buffer,
) -> None:
    small.fill(8)
    hooked, gate = HookedStore(small.store), Gate()
    consumer = Consumer(hooked, no_gc(), clock=small.time)
    hooked.before("read manifest", gate, skip=1, times=1)  # the head is read: the next is the segment
    late = Background(consumer.next_batch)
    gate.wait_for_arrival()
    small.ack(8)  # by another consumer
    small.time.passes(10 * GRACE)
    small.collect_all()
    assert small.segments() == set()
    gate.open()
    with pytest.raises(Fenced):
        late.result()
