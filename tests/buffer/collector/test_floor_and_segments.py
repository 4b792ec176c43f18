"""The floor of version 2 and segments: those below it are deleted, those in use never are."""

from __future__ import annotations

import pytest

from penstock.buffer import (
    Consumer,
    Producer,
)
from penstock.buffer.locations import location_time
from penstock.buffer.manifest.v2.segments import segment_time
from penstock.buffer.producer.block_appender import BlockAppender, BlockName
from penstock.errors import Fenced
from penstock.records import values_to_arrow
from penstock.testing import Fault, FaultyStore
from tests.buffer.collector.buffer_with_clock import DAY, FOLDER, ONE_EACH, WITHOUT_COLLECTOR, Buffer
from tests.support.dated_buffer import GRACE, MANIFEST, OWNER
from tests.support.hooked_store import HookedStore
from tests.support.waiting import Background, Gate

MANIFESTS = ["native"]


def test_segments_and_index_segments_below_the_floor_are_collected_and_those_in_use_never(
    buffer: Buffer, few_in_a_head: None
) -> None:
    buffer.fill(60)
    assert max(reference.level for reference in buffer.head.segments) >= 1
    everything = buffer.segments()
    buffer.ack(45)
    buffer.time.passes(10 * GRACE)
    buffer.collect_all()
    assert buffer.named() <= buffer.paths()
    assert len(buffer.segments()) < len(everything) / 2
    assert len(buffer.data()) < 60 / 2
    assert buffer.rest() == [b"%d" % number for number in range(45, 60)]


def test_a_queue_of_many_segments_that_is_drained_leaves_none(buffer: Buffer, few_in_a_head: None) -> None:
    buffer.fill(40)
    buffer.ack(40)
    buffer.time.passes(10 * GRACE)
    buffer.collect_all()
    assert buffer.paths() == {MANIFEST, OWNER}


def test_an_old_queue_of_many_segments_loses_nothing(buffer: Buffer, few_in_a_head: None) -> None:
    buffer.fill(40)
    named = buffer.named()
    assert len(named & buffer.segments()) > 10
    buffer.time.passes(100 * GRACE)
    buffer.collect_all()
    assert named <= buffer.paths()
    assert buffer.rest() == [b"%d" % number for number in range(40)]


def test_a_segment_that_is_sealed_by_a_clock_a_day_behind_is_above_the_floor(
    buffer: Buffer, few_in_a_head: None
) -> None:
    buffer.produce(b"0", b"1", b"2")
    buffer.orphan(-GRACE - 1)
    buffer.collect()
    (late,) = buffer.produce(b"3", skew=-DAY)
    (reference,) = buffer.head.segments
    assert reference.oldest >= buffer.head.floor
    assert (location_time(late.location) or 0) > buffer.head.floor
    buffer.time.passes(GRACE)
    buffer.collect()
    assert buffer.rest() == [b"0", b"1", b"2", b"3"]


def test_a_tail_that_is_sealed_by_a_host_a_day_behind_which_wrote_no_data_is_above_the_floor(
    buffer: Buffer, few_in_a_head: None
) -> None:
    buffer.produce(b"0", b"1", b"2")
    buffer.orphan(-GRACE - 1)
    buffer.collect()
    written = BlockAppender(buffer.store, clock=buffer.time).write(values_to_arrow([b"3"]))
    assert BlockAppender(buffer.store, clock=lambda: buffer.time() - DAY).append([written], BlockName("nightly", 1))
    (reference,) = buffer.head.segments
    assert (segment_time(reference.name) or 0) > buffer.head.floor
    buffer.time.passes(GRACE)
    buffer.collect()
    assert buffer.rest() == [b"0", b"1", b"2", b"3"]


def test_an_orphan_segment_of_a_lost_race_is_deleted_by_the_collector_only(buffer: Buffer, few_in_a_head: None) -> None:
    buffer.produce(b"0", b"1", b"2")
    hooked, gate = HookedStore(buffer.store), Gate()
    hooked.before("write manifest", gate, skip=1, times=1)  # the first write is the segment's
    with Producer(hooked, ONE_EACH, clock=buffer.time) as producer:
        handle = producer.produce(b"loser")
        gate.wait_for_somebody()
        (orphan,) = buffer.segments()
        buffer.produce(b"winner")  # seals the same tail, under another name
        gate.open()
        assert handle.result().sequence == 4
    live = {f"{FOLDER}{reference.name}" for reference in buffer.head.segments}
    assert orphan not in live
    assert buffer.segments() == live | {orphan}
    assert hooked.count("delete") == 0
    buffer.ack(5)
    buffer.time.passes(10 * GRACE)
    buffer.collect_all()
    assert buffer.segments() == set()


def test_after_a_lost_reply_the_segment_is_in_use_and_stays(buffer: Buffer, few_in_a_head: None) -> None:
    buffer.produce(b"0", b"1", b"2")
    buffer.orphan(-GRACE - 1)
    faulty = FaultyStore(buffer.store, rates={})
    faulty.inject(Fault.ERROR_AFTER, operation="put_if_match", path=MANIFEST)
    with Producer(faulty, ONE_EACH, clock=buffer.time) as producer:
        assert producer.produce(b"3").result().sequence == 3
    assert not faulty.planned
    assert buffer.segments() == {f"{FOLDER}{reference.name}" for reference in buffer.head.segments}
    buffer.time.passes(10 * GRACE)
    buffer.collect_all()
    assert buffer.rest() == [b"0", b"1", b"2", b"3"]


def test_readers_whose_segment_was_collected_while_they_were_paused_get_fenced(
    buffer: Buffer, few_in_a_head: None
) -> None:
    buffer.fill(8)
    hooked, gate = HookedStore(buffer.store), Gate()
    consumer = Consumer(hooked, WITHOUT_COLLECTOR, clock=buffer.time)
    hooked.before("read manifest", gate, skip=1, times=1)  # the head is read: the next is the segment
    late = Background(consumer.next_batch)
    gate.wait_for_somebody()
    buffer.ack(8)  # by another consumer
    buffer.time.passes(10 * GRACE)
    buffer.collect_all()
    assert buffer.segments() == set()
    gate.open()
    with pytest.raises(Fenced):
        late.result()
