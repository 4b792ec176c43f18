"""Heads and segments of version 2 that anyone with access to the bucket could write: reads raise `CorruptData`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from penstock.buffer import Consumer, GarbageCollector, Manifest, Producer, peek
from penstock.buffer.groups import Groups, Writers
from penstock.buffer.locations import Names, folder_of
from penstock.buffer.manifest.state import Group, Limits
from penstock.buffer.manifest.v2.head import Reference, encode_head, unborn_head
from penstock.buffer.manifest.v2.segments import Segment, encode_segment
from penstock.errors import CorruptData, Fenced
from penstock.storage import ObjectStore
from tests.buffer.consumer.edited_manifests import changed, head_of
from tests.support.filled_buffers import (
    MANIFEST,
    PATIENCE,
    Cursors,
    consume,
    cursors,
    each_alone,
    queue_up,
    sequences,
)
from tests.support.manifest_trailers import HEAD, SEGMENT, body_of, ended

MANIFESTS = ["native"]
ULID = "01ARZ3NDEKTSV4RRFFQ69G5FAV"
NAME = f"{0:020d}-{ULID}.seg"

Raw = dict[str, Any]


def raw(data: bytes) -> Raw:
    return dict(msgspec.msgpack.decode(body_of(data)))


def packed(value: object) -> bytes:
    return ended(msgspec.msgpack.encode(value), HEAD)


def segment_of(value: object, name: str) -> bytes:
    return ended(msgspec.msgpack.encode(value), SEGMENT, name=name)


def reference(**different: Any) -> list[object]:
    """A reference to the sequences 0 to 2, in a head whose tail is empty then."""
    values = {"name": NAME, "first": 0, "last": 2, "records": 3, "size": 3, "oldest": 1, "level": 0}
    return list({**values, **different}.values())


def with_tail(change: Callable[[list[list[Any]]], object]) -> Callable[[bytes], bytes]:
    """Change the entries of the tail in place."""

    def corrupt(data: bytes) -> bytes:
        head = raw(data)
        change(head["tail"])
        return packed(head)

    return corrupt


def with_group(**different: Any) -> Callable[[bytes], bytes]:
    return lambda data: changed(data, groups={"default": {**raw(data)["groups"]["default"], **different}})


def with_reference(**different: Any) -> Callable[[bytes], bytes]:
    return lambda data: changed(data, tail=[], segments=[reference(**different)])


# By what the error names. The head they change has three entries in its tail, and is at epoch 1.
HEADS: dict[str, tuple[str, Callable[[bytes], bytes]]] = {
    "a key it does not know": ("newer", lambda data: changed(data, colour="red")),
    "a key of a group it does not know": ("newer", with_group(colour="red")),
    "an entry that has more": ("newer", with_tail(lambda tail: tail[0].append(1))),
    "an entry that has less": ("tail", with_tail(lambda tail: tail[0].pop())),
    "no tail": ("tail", lambda data: packed({key: value for key, value in raw(data).items() if key != "tail"})),
    "no groups": ("groups", lambda data: packed({key: value for key, value in raw(data).items() if key != "groups"})),
    "a truncated map": ("cannot be read", lambda data: ended(data[: len(data) // 2], HEAD)),
    "bytes left over": ("cannot be read", lambda data: ended(body_of(data) + b"left over", HEAD)),
    "a list": ("cannot be read", lambda data: packed(list(raw(data).values()))),
    "a number": ("cannot be read", lambda _: packed(7)),
    "a map so deep that it cannot be read": ("cannot be read", lambda _: ended(b"\x91" * 100_000 + b"\xc0", HEAD)),
    "a length beyond the data": ("cannot be read", lambda _: ended(b"\xdf\xff\xff\xff\xff", HEAD)),
    "text for a number": ("revision", lambda data: changed(data, revision="7")),
    "a fraction for a number": ("next_sequence", lambda data: changed(data, next_sequence=3.5)),
    "nothing for a list": ("tail", lambda data: changed(data, tail=None)),
    "a number for a location": ("location|tail", with_tail(lambda tail: tail[0].__setitem__(1, 7))),
    "bytes for a location": ("location|tail", with_tail(lambda tail: tail[0].__setitem__(1, b"\xff\xff"))),
    "a negative revision": ("revision", lambda data: changed(data, revision=-1)),
    "a negative floor": ("floor", lambda data: changed(data, floor=-1)),
    "a negative epoch": ("epoch", lambda data: changed(data, epoch=-1)),
    "a gap in the tail": ("sequence 2 where 1 is due", with_tail(lambda tail: tail.pop(1))),
    "an entry twice": ("sequence 0 where 1 is due", with_tail(lambda tail: tail.insert(0, tail[0]))),
    "a tail in another order": ("tail", with_tail(lambda tail: tail.reverse())),
    "a negative sequence": ("segments", lambda data: changed(data, segments=[reference(first=-1)], tail=[])),
    "a next sequence that is too high": ("next_sequence", lambda data: changed(data, next_sequence=4)),
    "a next sequence that is too low": ("next_sequence", lambda data: changed(data, next_sequence=2)),
    "a gap behind the segments": (
        "tail",
        lambda data: changed(data, segments=[reference(last=0)], tail=raw(data)["tail"][2:]),
    ),
    "a segment that overlaps": ("tail", lambda data: changed(data, segments=[reference()])),
    "a segment that ends before it begins": ("segments", with_reference(first=2, last=1)),
    "a gap between segments": (
        "segments",
        lambda data: changed(data, tail=[], segments=[reference(last=0), reference(first=2)]),
    ),
    "a segment elsewhere": ("segments", with_reference(name="../../etc/passwd")),
    "a segment in the folder above": ("segments", with_reference(name="..")),
    "a segment whose name is no path": ("segments", with_reference(name="a\nb")),
    "a segment without a name": ("segments", with_reference(name="")),
    "a segment whose name has no time": ("segments", with_reference(name="segment.seg")),
    "an entry of fewer records than none": ("tail", with_tail(lambda tail: tail[0].__setitem__(2, -1))),
    "an entry of fewer bytes than none": ("tail", with_tail(lambda tail: tail[0].__setitem__(3, -1))),
    "a group that has not acked what is gone": ("groups", lambda data: changed(data, tail=[])),
    "a negative count of records": ("segments", with_reference(records=-1)),
    "a negative size": ("segments", with_reference(size=-1)),
    "a negative level": ("segments", with_reference(level=-1)),
    "a group that acked what is not there": ("groups", with_group(acked_through=3)),
    "a group that acked less than nothing": ("groups", with_group(acked_through=-2)),
    "a group of an epoch that was not given": ("groups", with_group(epoch=2)),
    "a group of a negative epoch": ("groups", with_group(epoch=-1)),
}
CALLS: dict[str, Callable[[ObjectStore, Consumer], object]] = {
    "next_batch": lambda _, consumer: consumer.next_batch(),
    "next_descriptors": lambda _, consumer: consumer.next_descriptors(9),
    "ack_through": lambda _, consumer: consumer.ack_through(1),
    "claim": lambda store, _: consume(store),
    "claim behind an ack": lambda store, _: consume(store, 1),
    "peek": lambda store, _: peek(store),
    "manifest": lambda store, _: Manifest.read(store),
}
OTHER_CALLS: dict[str, Callable[[ObjectStore], object]] = {
    "groups": lambda store: Groups(store).list(),
    "create": lambda store: Groups(store).create("audit"),
    "reset": lambda store: Groups(store).reset("default", "latest"),
    "writers": lambda store: Writers(store).list(),
    "collector": lambda store: GarbageCollector(store).collect_once(),
}


def corrupted(store: ObjectStore, corruption: str) -> tuple[Consumer, bytes]:
    """A consumer that has read entries, whose head was then corrupted; and the corrupt bytes."""
    queue_up(store, 3)
    consumer = consume(store)
    consumer.next_descriptors(2)
    _, corrupt = HEADS[corruption]
    data = corrupt(store.get(MANIFEST).data)
    store.put(MANIFEST, data)
    return consumer, data


@pytest.mark.parametrize("corruption", HEADS)
def test_a_corrupt_head_is_reported_by_every_call_and_not_overwritten(memory: ObjectStore, corruption: str) -> None:
    consumer, corrupt = corrupted(memory, corruption)
    named, _ = HEADS[corruption]
    for call in CALLS.values():
        with pytest.raises(CorruptData, match=named):
            call(memory, consumer)
    assert cursors(consumer) == Cursors(None, None, 1)
    assert memory.get(MANIFEST).data == corrupt


@pytest.mark.parametrize("call", OTHER_CALLS)
def test_a_corrupt_head_is_reported_by_the_calls_that_administer_a_buffer(memory: ObjectStore, call: str) -> None:
    _, corrupt = corrupted(memory, "a key it does not know")
    with pytest.raises(CorruptData, match="newer"):
        OTHER_CALLS[call](memory)
    assert memory.get(MANIFEST).data == corrupt


def test_a_corrupt_head_fails_the_handle_of_a_producer_and_is_not_overwritten(memory: ObjectStore) -> None:
    with Producer(memory, each_alone()) as producer:
        producer.produce(b"a").result(PATIENCE)
        corrupt = changed(memory.get(MANIFEST).data, colour="red")
        memory.put(MANIFEST, corrupt)
        with pytest.raises(CorruptData, match="newer"):
            producer.produce(b"b").result(PATIENCE)
    assert memory.get(MANIFEST).data == corrupt


def test_a_corrupt_head_is_not_overwritten_on_any_store(store: ObjectStore) -> None:
    consumer, corrupt = corrupted(store, "a gap in the tail")
    with pytest.raises(CorruptData):
        consumer.ack_through(1)
    with pytest.raises(CorruptData):
        consume(store)
    assert store.get(MANIFEST).data == corrupt


def test_a_time_of_a_takeover_that_no_calendar_has_is_a_fence_or_corrupt(memory: ObjectStore) -> None:
    queue_up(memory, 1)
    consumer = consume(memory)
    consume(memory)
    memory.put(MANIFEST, with_group(taken_at=(1 << 63) - 1)(memory.get(MANIFEST).data))
    with pytest.raises((Fenced, CorruptData)):
        consumer.flush()


@pytest.mark.parametrize("group", ["audit", "default"])
def test_a_group_that_is_not_there_is_a_fence(memory: ObjectStore, group: str) -> None:
    queue_up(memory, 1)
    consumer = consume(memory)
    memory.put(MANIFEST, changed(memory.get(MANIFEST).data, groups={} if group == "default" else {group: Group(0, -1)}))
    with pytest.raises(Fenced, match="is gone: it was dropped"):
        consumer.flush()


# Segments


def sealed(store: ObjectStore) -> tuple[Consumer, str]:
    """A consumer of a queue whose first entries are in a segment that it has not read; and where that is."""
    queue_up(store, Limits().tail_entries)
    queue_up(store, 1)
    (segment,) = head_of(store.get(MANIFEST).data).segments
    return consume(store), f"{folder_of(MANIFEST)}/{segment.name}"


SEGMENTS: dict[str, Callable[[Raw, str], bytes]] = {
    "nothing": lambda *_: b"",
    "text": lambda *_: b"this is no segment",
    "a version without a magic": lambda segment, name: body_of(segment_of(segment, name)) + b"\x02\x00",
    "another version": lambda segment, name: ended(msgspec.msgpack.encode(segment), SEGMENT, 7, name),
    "another kind": lambda segment, name: ended(msgspec.msgpack.encode(segment), HEAD, name=name),
    "another's bytes": lambda segment, name: segment_of(segment, name.replace("seg", "SEG")),
    "a byte changed": lambda segment, name: segment_of(segment, name).replace(b"level", b"lever", 1),
    "a truncated map": lambda segment, name: ended(msgspec.msgpack.encode(segment)[:-20], SEGMENT, name=name),
    "a key it does not know": lambda segment, name: segment_of({**segment, "colour": "red"}, name),
    "another level": lambda segment, name: segment_of({**segment, "level": 1}, name),
    "no entries": lambda segment, name: segment_of({**segment, "entries": []}, name),
    "a gap": lambda segment, name: segment_of(
        {**segment, "entries": segment["entries"][:5] + segment["entries"][6:]}, name
    ),
    "an entry too few": lambda segment, name: segment_of({**segment, "entries": segment["entries"][:-1]}, name),
    "other sequences": lambda segment, name: segment_of(
        {**segment, "entries": [[sequence + 9, *rest] for sequence, *rest in segment["entries"]]}, name
    ),
    "an entry that is none": lambda segment, name: segment_of(
        {**segment, "entries": [*segment["entries"][:-1], 7]}, name
    ),
    "itself": lambda _, name: segment_of({"level": 0, "references": [reference(last=Limits().tail_entries - 1)]}, name),
}


@pytest.mark.parametrize("corruption", SEGMENTS)
def test_a_corrupt_segment_is_reported_with_its_path_each_time(memory: ObjectStore, corruption: str) -> None:
    consumer, path = sealed(memory)
    memory.put(path, SEGMENTS[corruption](raw(memory.get(path).data), path.rpartition("/")[2]))
    before = memory.get(MANIFEST).data
    uses: list[Callable[[], object]] = [
        consumer.next_batch,
        lambda: consumer.next_descriptors(1),
        lambda: peek(memory),
        lambda: Manifest.read(memory),
    ]
    for use in uses:
        with pytest.raises(CorruptData, match=path):
            use()
    assert cursors(consumer) == Cursors(None, None, None)
    assert memory.get(MANIFEST).data == before


def test_a_segment_that_refers_to_itself_is_reported(memory: ObjectStore) -> None:
    _, path = sealed(memory)
    name = path.rpartition("/")[2]
    head = head_of(memory.get(MANIFEST).data)
    (there,) = head.segments
    # A reference is of a level above what it refers to: else reading would never end.
    loop = Reference(name, there.first, there.last, 0, 0, there.oldest, 1)
    memory.put(MANIFEST, encode_head(head.changed(segments=(loop,))))
    memory.put(path, segment_of({"level": 1, "references": [loop]}, name))
    with pytest.raises(CorruptData, match="level"):
        consume(memory).next_descriptors(1)


def test_a_segment_that_refers_to_itself_under_another_level_is_reported(memory: ObjectStore) -> None:
    _, path = sealed(memory)
    head = head_of(memory.get(MANIFEST).data)
    (there,) = head.segments
    memory.put(MANIFEST, encode_head(head.changed(segments=(msgspec.structs.replace(there, level=1),))))
    memory.put(path, encode_segment(Segment(1, references=(there,)), there.name))
    consumer = consume(memory)
    for _ in range(2):  # the second time from the cache
        with pytest.raises(CorruptData, match=f"{path}.*level: it is 1, and its reference says 0"):
            consumer.next_descriptors(1)


def test_a_segment_in_the_cache_is_not_mistaken_for_another(memory: ObjectStore) -> None:
    consumer, path = sealed(memory)
    assert consumer.next_descriptors(1)
    head = head_of(memory.get(MANIFEST).data)
    (there,) = head.segments
    for wrong in (msgspec.structs.replace(there, level=1), msgspec.structs.replace(there, last=there.last + 1)):
        entries = head.tail if wrong.last == there.last else ()
        memory.put(MANIFEST, encode_head(head.changed(segments=(wrong,), tail=entries)))
        with pytest.raises(CorruptData, match=path):
            consumer.next_descriptors(Limits().tail_entries + 1)


def test_index_segments_deeper_than_any_queue_needs_are_reported(memory: ObjectStore) -> None:
    sealed(memory)
    head = head_of(memory.get(MANIFEST).data)
    (reference,) = head.segments
    names = Names()
    for level in range(1, 1_200):
        name = f"{reference.first:020d}-{names.ulid()}.seg"
        memory.put(f"{folder_of(MANIFEST)}/{name}", encode_segment(Segment(level, references=(reference,)), name))
        reference = msgspec.structs.replace(reference, name=name, level=level)
    deep = head.changed(segments=(reference,))
    memory.put(MANIFEST, encode_head(deep))
    uses: list[Callable[[], object]] = [
        lambda: consume(memory).next_descriptors(1),
        lambda: peek(memory),
        lambda: Manifest.read(memory),
    ]
    for use in uses:
        with pytest.raises(CorruptData, match="has level 1199, and the highest is 64"):
            use()


def test_a_repaired_segment_is_read(memory: ObjectStore) -> None:
    consumer, path = sealed(memory)
    whole = memory.get(path).data
    memory.put(path, whole[:-1])
    with pytest.raises(CorruptData):
        consumer.next_descriptors(1)
    memory.put(path, whole)
    assert sequences(consumer.next_descriptors(Limits().tail_entries + 9)) == list(range(Limits().tail_entries + 1))


def test_a_segment_whose_name_has_no_time_is_reported_by_an_ack_within_it(memory: ObjectStore) -> None:
    # Its entries have no times either: the oldest time of such a window is not known.
    _, path = sealed(memory)
    memory.put(f"{folder_of(MANIFEST)}/segment.seg", memory.get(path).data)
    data = memory.get(MANIFEST).data
    head = raw(data)
    head["segments"][0][0] = "segment.seg"
    memory.put(MANIFEST, packed(head))
    with pytest.raises(CorruptData, match=r"segment\.seg"):
        consume(memory, 1)


def test_a_corrupt_segment_can_be_skipped_by_an_ack_through_its_end(memory: ObjectStore) -> None:
    # An ack does not read what is before it; nor does a reader that goes on after it.
    _, path = sealed(memory)
    memory.put(path, b"this is no segment")
    consumer = consume(memory, Limits().tail_entries - 1)
    assert sequences(consumer.next_descriptors(9)) == [Limits().tail_entries]


def test_the_head_that_these_tests_change_is_the_one_of_the_product() -> None:
    # Else every corruption above would be one of a head that Penstock never writes.
    head = unborn_head()
    assert head_of(packed(raw(encode_head(head)))) == head
