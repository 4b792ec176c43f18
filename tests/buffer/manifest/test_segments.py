"""Segments: what is sealed is read again, through windows, with no more reads than it takes."""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.buffer.locations import Names, location_time, segment_time
from penstock.buffer.manifest.state import Limits
from penstock.buffer.manifest.v2.head import Entry, Reference
from penstock.buffer.manifest.v2.segments import Segments, folded, narrowed, sealed
from penstock.errors import CorruptData, NotFound
from penstock.storage import MemoryStore
from penstock.storage.object_store import Data
from tests.buffer.manifest.samples import FOLDER, ITEMS, LETTERS, MANIFEST, U64, Counted, entry
from tests.support.manifest_trailers import HEAD, SEGMENT, body_of, ended

MANIFESTS = ["native"]
NAME = "00000000000000000000-01ARZ3NDEKTSV4RRFFQ69G5FAV.seg"
CLOCK = 1_700_000_000.0
COUNTS = st.none() | st.integers(0, 9)


class Sealer(Segments):
    """Segments that are named by one clock, and written as soon as they are sealed or folded."""

    def __init__(self, store: MemoryStore, at: float = CLOCK, *, references: int = 256) -> None:
        super().__init__(store, MANIFEST)
        self._names = Names(lambda: at)
        self._limits = Limits(references=references)

    def seal(self, entries: Sequence[Entry], floor: int = 0) -> list[Reference]:
        new = sealed(entries, self._names, floor, self._limits)
        self.write(new)
        return [one.reference for one in new]

    def fold(self, references: Sequence[Reference]) -> tuple[Reference, ...]:
        kept, new = folded(references, self._names, 0, self._limits)
        self.write(new)
        return kept


def segments_on(store: MemoryStore, at: float = CLOCK) -> Sealer:
    return Sealer(store, at)


def ulid_location(milliseconds: int) -> str:
    return Names(lambda: milliseconds / 1000 + 1e-4).location("ingest")


@dataclass
class Pair:
    """One who writes segments, and another who has none of them in memory."""

    store: Counted
    writing: Sealer
    reading: Segments


@pytest.fixture
def pair(fresh_name: str) -> Pair:
    store = Counted(fresh_name)
    return Pair(store, segments_on(store), segments_on(store))


def built(pair: Pair, count: int, each: int = 1, start: int = 0) -> tuple[Reference, ...]:
    """References to so many sealed segments, folded as they come."""
    references: tuple[Reference, ...] = ()
    for number in range(count):
        first = start + number * each
        sealed = pair.writing.seal([entry(first + place) for place in range(each)], 0)
        references = pair.writing.fold((*references, *sealed))
    return references


@given(
    st.lists(st.tuples(st.text(LETTERS, min_size=1), COUNTS, st.none() | U64, st.lists(ITEMS).map(tuple)), min_size=1),
    st.integers(0, 1 << 60),
)
def test_what_is_sealed_is_read_as_it_was(described: list[tuple[str, Any, Any, Any]], first: int) -> None:
    entries = [Entry(first + place, *one) for place, one in enumerate(described)]
    store = MemoryStore("native-segments-round-trip")
    (reference,) = segments_on(store).seal(entries, 0)
    assert list(segments_on(store).entries([reference], 0, 1 << 63)) == entries
    assert (reference.first, reference.last, reference.level) == (first, first + len(entries) - 1, 0)
    assert reference.records == sum(one.records or 0 for one in entries)
    assert reference.size == sum(one.size or 0 for one in entries)
    assert reference.name.startswith(f"{first:020d}-")


def test_the_oldest_time_is_the_least_of_its_locations_and_of_its_own_name(pair: Pair) -> None:
    now = int(CLOCK * 1000)
    (alone,) = pair.writing.seal([entry(0, "no/ulid")], 0)
    (older,) = pair.writing.seal([entry(0, ulid_location(now)), entry(1, ulid_location(5_000))], 0)
    (newer,) = pair.writing.seal([entry(0, ulid_location(now + 5_000))], 0)
    assert (alone.oldest, older.oldest, newer.oldest) == (now, 5_000, now)


def test_a_segments_name_is_above_the_floor_whatever_the_clock_says(pair: Pair) -> None:
    floor = int(CLOCK * 1000) + 86_400_000
    (reference,) = pair.writing.seal([entry(0)], floor)
    assert segment_time(reference.name) == floor + 1


def test_entries_over_a_megabyte_are_several_segments(pair: Pair) -> None:
    references = pair.writing.seal([entry(number, "x" * 60_000) for number in range(40)], 0)
    assert [(one.first, one.last) for one in references] == [(0, 16), (17, 33), (34, 39)]
    assert len(list(pair.reading.entries(references, 0, 99))) == 40


def test_over_1024_entries_are_several_segments(pair: Pair) -> None:
    references = pair.writing.seal([entry(number) for number in range(2_049)], 0)
    assert [(one.first, one.last) for one in references] == [(0, 1023), (1024, 2047), (2048, 2048)]


def test_many_segments_are_written_beside_each_other(fresh_name: str) -> None:
    meeting = threading.Barrier(4)

    class Meeting(MemoryStore):
        def put(self, path: str, data: Data) -> str:
            meeting.wait(30)  # for ever, if one comes after the other
            return super().put(path, data)

    references = Sealer(Meeting(fresh_name)).seal([entry(number) for number in range(4_096)])
    assert [one.first for one in references] == [0, 1024, 2048, 3072]


def test_256_references_stay_and_the_next_folds_the_older_half(pair: Pair) -> None:
    references = built(pair, Limits().references)
    assert [one.level for one in references] == [0] * 256
    kept = pair.writing.fold((*references, *pair.writing.seal([entry(256)], 0)))
    assert [one.level for one in kept] == [1] + [0] * 129
    assert (kept[0].first, kept[0].last, kept[0].records, kept[0].size) == (0, 127, 256, 1280)
    assert [one.location for one in pair.reading.entries(kept, 0, 999)] == [f"data/{n}" for n in range(257)]


def test_the_depth_grows_with_the_logarithm_and_levels_never_rise(pair: Pair) -> None:
    pair.writing = Sealer(pair.store, references=8)
    references: tuple[Reference, ...] = ()
    for number in range(3_000):
        references = pair.writing.fold((*references, *pair.writing.seal([entry(number)], 0)))
        levels = [one.level for one in references]
        assert levels == sorted(levels, reverse=True)
        assert len(levels) <= 8
        assert max(levels) <= 1 + math.log2(number + 1)
    assert max(levels) >= 3
    assert [one.sequence for one in pair.reading.entries(references, 0, 9_999)] == list(range(3_000))
    assert references[0].oldest == int(CLOCK * 1000)


def test_reading_at_a_sequence_opens_one_segment_of_each_level(pair: Pair) -> None:
    pair.writing = Sealer(pair.store, references=8)
    references = built(pair, 400, each=3)
    for sequence in (0, 1, 599, 600, 1_199):
        pair.store.clear()
        holding = [one for one in references if one.first <= sequence <= one.last]
        fresh = segments_on(pair.store)
        assert [one.sequence for one in fresh.entries(references, sequence, sequence + 1)] == [sequence]
        assert pair.store.calls["get"] == holding[0].level + 1


def test_what_was_opened_once_is_not_opened_again(pair: Pair) -> None:
    references = built(pair, 4, each=3)
    for _ in range(3):
        assert len(list(pair.reading.entries(references, 2, 7))) == 5
    assert pair.store.calls["get"] == 3
    assert len(list(pair.writing.entries(references, 0, 99))) == 12
    assert pair.store.calls["get"] == 3  # the writer of a segment has it in its cache


def test_the_cache_has_an_end(pair: Pair) -> None:
    pair.reading = Segments(pair.store, MANIFEST, cached_bytes=100_000)
    references = [pair.writing.seal([entry(number, "x" * 40_000)], 0)[0] for number in range(5)]
    for _ in range(2):
        assert len(list(pair.reading.entries(references, 0, 5))) == 5
    assert pair.store.calls["get"] == 10
    list(pair.reading.entries(references, 3, 5))
    assert pair.store.calls["get"] == 10  # the latest are there


class Windowed:
    """A tree of segments over a plain list."""

    def __init__(self, entries: list[Entry], cuts: list[int], fan: int) -> None:
        self.entries = entries
        self.segments = Sealer(MemoryStore("native-segments-windows"), 5.0, references=1)
        ends = sorted({*cuts, len(entries)})
        references: list[Reference] = []
        for start, end in zip([0, *ends], ends, strict=False):
            references += self.segments.seal(entries[start:end], 0)
        while len(references) > 1:  # `fan` of them at a time, and so level by level
            references = [
                one for at in range(0, len(references), fan) for one in self.segments.fold(references[at : at + fan])
            ]
        (self.whole,) = references


@st.composite
def windowed(draw: st.DrawFn) -> Windowed:
    times = draw(st.lists(st.none() | st.integers(0, 9_000), min_size=1, max_size=24))
    entries = [
        Entry(at, f"plain/{at}" if time is None else ulid_location(time), draw(COUNTS), draw(COUNTS), ())
        for at, time in enumerate(times)
    ]
    return Windowed(entries, draw(st.lists(st.integers(1, len(entries)))), draw(st.integers(2, 4)))


@settings(max_examples=60)
@given(windowed(), st.data())
def test_a_window_says_exactly_what_remains(windowed: Windowed, data: st.DataObject) -> None:
    reference = windowed.whole
    for first in sorted(data.draw(st.lists(st.integers(0, len(windowed.entries) - 1), max_size=3))):
        reference = narrowed(reference, first, windowed.segments.read)
        remaining = windowed.entries[first:]
        assert (reference.first, reference.last) == (first, len(windowed.entries) - 1)
        assert reference.records == sum(one.records or 0 for one in remaining)
        assert reference.size == sum(one.size or 0 for one in remaining)
        times = [time for time in (location_time(one.location) for one in remaining) if time is not None]
        assert reference.oldest == min([*times, 5_000])
        assert list(windowed.segments.entries([reference], 0, 99)) == remaining


def test_a_segment_that_is_gone_is_named_by_its_path(pair: Pair) -> None:
    (reference,) = pair.writing.seal([entry(0)], 0)
    pair.store.delete([f"{FOLDER}/{reference.name}"])
    with pytest.raises(NotFound, match=reference.name):
        pair.reading.read(reference)


def raw(level: int, **held: object) -> bytes:
    return ended(msgspec.msgpack.encode({"level": level, **held}), SEGMENT, name=NAME)


PLAIN = [[0, "x", 1, 1, []], [1, "x", 1, 1, []]]
CHILD = [NAME, 0, 1, 1, 1, 1, 0]


@pytest.mark.parametrize(
    ("level", "data", "complaint"),
    [
        (0, b"", "too small"),
        (0, b"\x02", "too small"),
        (0, raw(0, entries=PLAIN)[:-2] + b"\x03\x00", "unsupported version 3"),
        (0, ended(body_of(raw(0, entries=PLAIN)), SEGMENT, 3, NAME), "unsupported version 3 of a segment"),
        (
            0,
            ended(body_of(raw(0, entries=PLAIN)), HEAD, name=NAME),
            "it is not a segment: it ends in a manifest's head",
        ),
        (0, ended(body_of(raw(0, entries=PLAIN)), SEGMENT), "checksum"),
        (0, ended(body_of(raw(0, entries=PLAIN)), SEGMENT, name=NAME.replace("5FAV", "5FAW")), "checksum"),
        (0, raw(0, entries=PLAIN)[1:], "checksum"),
        (0, ended(body_of(raw(0, entries=PLAIN))[:-1], SEGMENT, name=NAME), "cannot be read"),
        (0, raw(0, entries=PLAIN, more=1), "unknown field `more`"),
        (0, raw(0, entries=[[*PLAIN[0], 5]]), "entries"),
        (0, raw(0, entries=[PLAIN[0], [3, "x", 1, 1, []]]), "entries: sequence 3 is there where 1 is due"),
        (0, raw(0, entries=PLAIN[:1]), "it holds 0 to 0, and its reference says 0 to 1"),
        (0, raw(0, entries=[]), "level"),
        (0, raw(0), "level"),
        (0, raw(1, references=[CHILD]), "level: it is 1, and its reference says 0"),
        (1, raw(0, entries=PLAIN), "level: it is 0, and its reference says 1"),
        (1, raw(1, references=[]), "it holds"),
        (1, raw(1, references=[CHILD], entries=PLAIN), "level: it is 1, and it holds 2 entries and 1 references"),
        (0, raw(0, references=[CHILD], entries=PLAIN), "level: it is 0, and it holds 2 entries and 1 references"),
        (1, raw(1, references=[[*CHILD[:6], 1]]), "level"),
        (2, raw(2, references=[CHILD]), "level: .* has 0 in a segment of 2"),
        (66, raw(66, references=[[*CHILD[:6], 65]]), "level 65, and the highest is 64"),
        (1, raw(1, references=[CHILD, CHILD]), "segments"),
        (1, raw(1, references=[["", *CHILD[1:]]]), "segments"),
        (1, raw(1, references=[[*CHILD[:3], -1, *CHILD[4:]]]), "references"),
        (0, raw(0, entries=[[0, "x", -1, 1, []], PLAIN[1]]), "entries"),
    ],
)
def test_a_segment_that_is_broken_is_named_by_its_path_and_field(
    pair: Pair, level: int, data: bytes, complaint: str
) -> None:
    reference = Reference(NAME, 0, 1, 2, 2, 1, level)
    pair.store.put(f"{FOLDER}/{reference.name}", data)
    with pytest.raises(CorruptData, match=complaint) as raised:
        pair.reading.read(reference)
    assert reference.name in str(raised.value)


@given(st.binary(max_size=100), st.integers(0, 2))
def test_any_bytes_are_a_segment_or_corrupt(data: bytes, level: int) -> None:
    store = MemoryStore("native-segments-fuzz")
    reference = Reference(NAME, 0, 1, 2, 2, 1, level)
    for whole in (data, data + b"PSTS", ended(data, SEGMENT, name=NAME)):
        store.put(f"{FOLDER}/{reference.name}", whole)
        with suppress(CorruptData):
            segments_on(store).read(reference)
