"""What the head names is never deleted, whatever its floor and its closed ranges say."""

from __future__ import annotations

import logging

import msgspec
import pytest

from penstock.buffer.locations import LAST_ULID_MS, location_time
from penstock.buffer.manifest.v2.head import Head, encode_head
from penstock.errors import NotFound
from tests.buffer.collector.buffer_with_clock import DAY, Buffer
from tests.support.dated_buffer import GRACE, MANIFEST

MANIFESTS = ["native"]


def damage(buffer: Buffer, **changes: object) -> Head:
    """Write the head again with other numbers, as Penstock never writes it."""
    head = msgspec.structs.replace(buffer.head, **changes)
    buffer.store.put(MANIFEST, encode_head(head))
    return head


FLOORS = {
    "a floor of tomorrow": {"floor": 2_000_000_000_000},
    "the last floor that there can be": {"floor": LAST_ULID_MS},
    "a floor with a flipped bit": {"floor": 1 << 45},
    "a range that is closed over everything": {"closed": ((1, LAST_ULID_MS),)},
}


@pytest.mark.parametrize("changes", FLOORS.values(), ids=FLOORS)
def test_what_the_tail_names_is_kept_and_the_rest_is_deleted(
    buffer: Buffer, changes: dict[str, object], caplog: pytest.LogCaptureFixture
) -> None:
    named = {one.location for one in buffer.produce(b"0", b"1", b"2")}
    orphan = buffer.orphan(-DAY)
    damage(buffer, **changes)
    buffer.time.passes(10 * GRACE)
    with caplog.at_level(logging.ERROR, "penstock.buffer.collector"):
        assert buffer.collect().deleted == 1
    assert buffer.data() == named
    assert orphan not in buffer.data()
    assert "3 objects are named by" in caplog.text
    assert buffer.rest() == [b"0", b"1", b"2"]


@pytest.mark.parametrize("changes", FLOORS.values(), ids=FLOORS)
def test_what_segments_and_index_segments_name_is_kept_and_they_too(small: Buffer, changes: dict[str, object]) -> None:
    small.fill(60)
    small.ack(7)
    assert max(reference.level for reference in small.head.segments) >= 1
    named = small.named()
    damage(small, **changes)
    small.time.passes(10 * GRACE)
    small.collect_all()
    assert named <= small.paths()
    assert len(small.data()) == 53
    assert small.rest() == [b"%d" % number for number in range(7, 60)]


def test_a_sound_head_is_compared_without_opening_a_segment(small: Buffer) -> None:
    small.fill(20)
    orphan = small.orphan(-DAY)
    small.collect()
    small.time.passes(GRACE)
    for path in small.segments():
        small.store.put(path, b"not a segment any more")
    assert small.collect().deleted == 1
    assert orphan not in small.data()


def test_where_a_segment_of_a_damaged_head_is_gone_nothing_is_deleted(small: Buffer) -> None:
    small.fill(20)
    small.orphan(-DAY)
    damage(small, floor=LAST_ULID_MS)
    small.time.passes(10 * GRACE)
    small.store.delete([min(small.segments())])
    before = small.paths()
    with pytest.raises(NotFound):
        small.collect()
    assert small.paths() == before


def test_an_entry_that_comes_between_the_listing_and_the_delete_is_kept(buffer: Buffer) -> None:
    """Of a program that does not respect the floor."""
    buffer.produce(b"0")
    late = buffer.orphan(-DAY)
    buffer.collect()
    buffer.time.passes(GRACE)
    (entry,) = buffer.head.tail
    named = msgspec.structs.replace(entry, sequence=1, location=late)
    damage(buffer, tail=(entry, named), next_sequence=2)
    assert buffer.collect().deleted == 0
    assert late in buffer.data()
    assert (location_time(late) or 0) < buffer.head.floor
