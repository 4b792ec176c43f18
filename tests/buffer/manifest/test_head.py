"""The head of version 2: what is written is read, and an error names the field."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import Consumer, ConsumerConfig, peek
from penstock.buffer import GarbageCollector
from penstock.buffer.descriptors import Metadata
from penstock.buffer.groups import Groups
from penstock.buffer.manifest.contents import Manifest
from penstock.buffer.manifest.state import Group, Limits, Writer
from penstock.buffer.manifest.v2.head import (
    Entry,
    Head,
    Reference,
    decode_head,
    encode_head,
    entry_of,
    is_too_long,
    unborn_head,
    version_of,
)
from penstock.buffer.producer.block_appender import BlockAppender
from penstock.errors import CorruptData, InvalidInput
from penstock.records import values_to_arrow
from penstock.storage import MemoryStore
from tests.buffer.manifest.samples import ITEMS, LETTERS, U64, entry
from tests.support.manifest_trailers import HEAD, body_of, ended

MANIFESTS = ["native"]
NAME = "00000000000000000000-01ARZ3NDEKTSV4RRFFQ69G5FAV.seg"


@st.composite
def heads(draw: st.DrawFn) -> Head:
    """Any head that can be."""
    at = first = draw(st.integers(0, 1 << 40))
    references = []
    for level in sorted(draw(st.lists(st.integers(0, 3), max_size=4)), reverse=True):
        last = at + draw(st.integers(0, 1 << 20))
        counts = draw(st.tuples(U64, U64, U64))
        references.append(Reference(f"{at:020d}-{NAME[21:]}", at, last, *counts, level))
        at = last + 1
    tail = []
    for _ in range(draw(st.integers(0, 4))):
        known = draw(st.tuples(st.none() | U64, st.none() | U64))
        tail.append(Entry(at, draw(st.text(LETTERS, min_size=1)), *known, draw(st.lists(ITEMS).map(tuple))))
        at += 1
    epoch = draw(U64)
    groups = st.builds(Group, st.integers(0, epoch), st.integers(first - 1, at - 1), st.text(LETTERS), U64)
    return Head(
        id=draw(st.uuids()).bytes,
        revision=draw(U64),
        next_sequence=at,
        epoch=epoch,
        tail=tuple(tail),
        segments=tuple(references),
        groups=draw(st.dictionaries(st.text(LETTERS), groups, max_size=3)) if at > first else {},
        writers=draw(st.dictionaries(st.text(LETTERS), st.builds(Writer, U64, U64, U64, U64, st.booleans()))),
        forgotten_through=draw(U64),
        floor=draw(U64),
        floor_set_at=draw(U64),
    )


@given(heads())
def test_a_head_is_read_as_it_was_written(head: Head) -> None:
    data = encode_head(head)
    assert decode_head(data) == head
    assert list(decode_head(data).writers) == list(head.writers)  # their order says who wrote last
    assert version_of(data) == 2
    assert Manifest.decode(data).head == head


SMALL = unborn_head().changed(
    next_sequence=4,
    epoch=3,
    segments=(Reference(NAME, 0, 1, 4, 20, 7, 0),),
    tail=(entry(2), entry(3)),
    groups={"default": Group(3, 1, "host:1", 8)},
    writers={"w": Writer(0, 2, 1, 9, False)},
)


def plain() -> dict[str, Any]:
    """A small head as any MessagePack library has it."""
    found: dict[str, Any] = msgspec.msgpack.decode(msgspec.msgpack.encode(SMALL))
    return found


def written(head: object) -> bytes:
    return ended(msgspec.msgpack.encode(head), HEAD)


def test_the_sample_is_read_before_it_is_spoilt() -> None:
    assert decode_head(written(plain())) == SMALL


@pytest.mark.parametrize("key", list(plain()))
def test_a_key_that_is_missing_is_named(key: str) -> None:
    spoilt = plain()
    del spoilt[key]
    with pytest.raises(CorruptData, match=f"`{key}`"):
        decode_head(written(spoilt))


@pytest.mark.parametrize("place", [[], ["groups", "default"]], ids=["the head", "a group"])
def test_a_key_that_is_not_known_is_refused_and_not_dropped(place: list[str]) -> None:
    spoilt = found = plain()
    for step in place:
        found = found[step]
    found["lease"] = 5
    with pytest.raises(CorruptData, match=r"unknown field `lease`.*is it the newest here"):
        decode_head(written(spoilt))


@pytest.mark.parametrize(
    "place", [("tail", 0), ("segments", 0), ("writers", "w")], ids=["an entry", "a reference", "a writer"]
)
def test_an_element_too_many_is_refused_and_not_dropped(place: tuple[str, Any]) -> None:
    spoilt = plain()
    spoilt[place[0]][place[1]].append(5)
    with pytest.raises(CorruptData, match=place[0]):
        decode_head(written(spoilt))


def test_an_element_too_many_in_metadata_is_refused_and_not_dropped() -> None:
    spoilt = plain()
    spoilt["tail"][0][4] = [[0, 0, b"", 5]]
    with pytest.raises(CorruptData, match="tail"):
        decode_head(written(spoilt))


@pytest.mark.parametrize(
    ("key", "value", "field"),
    [
        ("revision", -1, "revision"),
        ("epoch", -1, "epoch"),
        ("forgotten_through", -1, "forgotten_through"),
        ("floor", -1, "floor"),
        ("floor_set_at", -1, "floor_set_at"),
        ("next_sequence", 3, "next_sequence"),
        ("next_sequence", 5, "next_sequence"),
        ("next_sequence", -1, "next_sequence"),
        ("next_sequence", "4", "next_sequence"),
        ("epoch", 2, "groups"),
        ("tail", [[3, "x", 1, 1, []]], "tail"),
        ("tail", [[2, "x", 1, 1, []], [4, "x", 1, 1, []]], "tail"),
        ("tail", [[2, "x", -1, 1, []], [3, "x", 1, 1, []]], "tail"),
        ("tail", [[2, "x", 1, -1, []], [3, "x", 1, 1, []]], "tail"),
        ("tail", [], "next_sequence"),
        ("segments", [[NAME, 0, 2, 1, 1, 1, 0]], "tail"),
        ("segments", [[NAME, 1, 0, 1, 1, 1, 0]], "segments"),
        ("segments", [[NAME, -1, 1, 1, 1, 1, 0]], "segments"),
        ("segments", [[NAME, 0, 0, 1, 1, 1, 0], [NAME, 2, 1, 1, 1, 1, 0]], "segments"),
        ("segments", [[NAME, 0, 1, -1, 1, 1, 0]], "segments"),
        ("segments", [[NAME, 0, 1, 1, -1, 1, 0]], "segments"),
        ("segments", [[NAME, 0, 1, 1, 1, -1, 0]], "segments"),
        ("segments", [[NAME, 0, 1, 1, 1, 1, -1]], "segments"),
        ("segments", [["../" + NAME, 0, 1, 1, 1, 1, 0]], "segments"),
        ("segments", [["..", 0, 1, 1, 1, 1, 0]], "segments"),
        ("segments", [["", 0, 1, 1, 1, 1, 0]], "segments"),
        ("segments", [["no-segment", 0, 1, 1, 1, 1, 0]], "segments"),
        ("groups", {"g": {"epoch": 4, "acked_through": 0}}, "groups"),
        ("groups", {"g": {"epoch": -1, "acked_through": 0}}, "groups"),
        ("groups", {"g": {"epoch": 1, "acked_through": -2}}, "groups"),
        ("groups", {"g": {"epoch": 1, "acked_through": 4}}, "groups"),
        ("groups", [], "groups"),
        ("writers", {"w": [-1, 0, 1, 0, False]}, "writers"),
        ("writers", {"w": [0, -1, 1, 0, False]}, "writers"),
        ("writers", {"w": [0, 0, 0, 0]}, "writers"),
        ("writers", {"w": [0, 0, 0, 0, 1]}, "writers"),
        ("writers", {5: [0, 0, 0, 0, False]}, "writers"),
    ],
)
def test_a_field_with_a_wrong_value_is_named(key: str, value: object, field: str) -> None:
    with pytest.raises(CorruptData, match=field):
        decode_head(written({**plain(), key: value}))


@pytest.mark.parametrize("version", [0, 1, 3, 258])
def test_another_version_is_named(version: int) -> None:
    body = body_of(encode_head(SMALL))
    for data in (ended(body, HEAD, version), body + version.to_bytes(2, "little")):
        with pytest.raises(CorruptData, match=f"unsupported version {version} "):
            decode_head(data)


NO_HEADS = [b"", b"\x02", b"\x02\x00", b"\xc0\x02\x00", b"PSTM", b"\x02\x00PSTM", *map(written, (None, [1], {}))]


@pytest.mark.parametrize("data", NO_HEADS)
def test_what_is_no_head_is_corrupt(data: bytes) -> None:
    with pytest.raises(CorruptData):
        decode_head(data)


def test_a_head_that_is_cut_anywhere_is_corrupt() -> None:
    whole = encode_head(SMALL)
    body = body_of(whole)
    for length in range(len(body)):
        for data in (ended(body[:length], HEAD), body[:length] + whole[len(body) :]):
            with pytest.raises(CorruptData):
                decode_head(data)
    with pytest.raises(CorruptData):
        decode_head(ended(body + b"\x00", HEAD))


@given(st.binary(max_size=200))
def test_any_bytes_are_a_head_or_corrupt(data: bytes) -> None:
    for whole in (data, data + b"\x02\x00", data + b"PSTM", ended(data, HEAD)):
        with suppress(CorruptData):
            decode_head(whole)


@given(st.data())
def test_a_head_with_any_bytes_changed_is_a_head_or_corrupt_even_where_its_checksum_is_right(
    data: st.DataObject,
) -> None:
    spoilt = bytearray(body_of(encode_head(SMALL)))
    for _ in range(data.draw(st.integers(1, 4))):
        spoilt[data.draw(st.integers(0, len(spoilt) - 1))] = data.draw(st.integers(0, 255))
    with suppress(CorruptData):
        assert isinstance(decode_head(ended(bytes(spoilt), HEAD)), Head)


@given(st.data())
def test_a_head_with_any_bytes_changed_is_corrupt(data: st.DataObject) -> None:
    whole = encode_head(SMALL)
    spoilt = bytearray(whole)
    for _ in range(data.draw(st.integers(1, 4))):
        spoilt[data.draw(st.integers(0, len(spoilt) - 1))] = data.draw(st.integers(0, 255))
    if spoilt != whole:
        with pytest.raises(CorruptData):
            decode_head(bytes(spoilt))


def test_deep_nesting_is_corrupt() -> None:
    with pytest.raises(CorruptData):
        decode_head(ended(b"\x91" * 100_000 + b"\xc0", HEAD))


def test_a_head_that_was_just_read_is_never_changed() -> None:
    later = SMALL.changed(floor=9)
    assert (later.revision, later.floor) == (SMALL.revision + 1, 9)
    assert SMALL.floor == 0


@pytest.mark.parametrize("field", ["revision", "epoch", "floor"])
def test_a_number_beyond_64_bits_is_refused_and_not_written(field: str) -> None:
    with pytest.raises(InvalidInput, match="64 bits"):
        encode_head(SMALL.changed(**{field: 1 << 64}) if field != "revision" else replaced(1 << 64))


def replaced(revision: int) -> Head:
    return msgspec.structs.replace(SMALL, revision=revision)


@pytest.mark.parametrize(
    ("location", "item"),
    [("\ud800", Metadata(0, 0)), ("x", Metadata(1 << 64, 0)), ("x", Metadata(0, 1 << 64))],
    ids=["location", "start", "time"],
)
def test_an_entry_that_cannot_be_encoded_is_refused(location: str, item: Metadata) -> None:
    with pytest.raises(InvalidInput, match=r"UTF-8 .* 64 bits"):
        is_too_long((entry_of(0, location, (item,), 1, 1),), Limits())


def test_a_tail_is_full_at_256_entries() -> None:
    assert Limits().tail_entries == 256
    assert not is_too_long(tuple(entry(number, "x") for number in range(256)), Limits())
    assert is_too_long(tuple(entry(number, "x") for number in range(257)), Limits())


def test_a_tail_is_full_at_32_kib() -> None:
    assert Limits().tail_bytes == 32 << 10
    around = len(msgspec.msgpack.encode((entry(0, "x" * 30_000),))) - 30_000
    assert not is_too_long((entry(0, "x" * (Limits().tail_bytes - around)),), Limits())
    assert is_too_long((entry(0, "x" * (Limits().tail_bytes - around + 1)),), Limits())


@pytest.mark.parametrize("data", [b"", b"\x02\x00", written({}), written({"a": 1}), ended(b"\x80", HEAD, 3)])
def test_the_error_for_a_broken_head_names_its_path(data: bytes, fresh_name: str) -> None:
    store = MemoryStore(fresh_name)
    store.put("ingest/manifest", data)
    readers: list[Callable[[], object]] = [
        lambda: Manifest.read(store),
        lambda: Consumer(store, ConsumerConfig(gc=False)),
        lambda: GarbageCollector(store).collect_once(),
        lambda: peek(store),
        lambda: Groups(store).list(),
        lambda: BlockAppender(store).write(values_to_arrow([b"a"])),
    ]
    for read in readers:
        with pytest.raises(CorruptData, match=rf"^{store.url}/ingest/manifest: "):
            read()
