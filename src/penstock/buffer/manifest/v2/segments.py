"""Segments: the sealed parts of a queue. Immutable objects in `<manifest_path>.d/`, and windows on them.

```text
segment  a MessagePack map {"level": n, "entries": [...]} or {"level": n, "references": [...]},
         then the trailer of `trailer.py` with version = 2, magic PSTS and the file name of the segment
```
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeAlias

import msgspec

from penstock.buffer.format.trailer import SEGMENT_MAGIC, last_u16, magic_of, trailer, unsupported, verified_body
from penstock.buffer.locations import Names, location_time, ulid_time
from penstock.buffer.manifest.v2.head import (
    MOST_REFERENCES,
    SEGMENT_NAME,
    VERSION,
    Entry,
    Natural,
    Reference,
    check_reference,
)
from penstock.core import get_logger
from penstock.errors import CorruptData
from penstock.storage import ObjectStore, get_at_most, url_of

SEALING_THREADS = 16
"""How many segments are written at the same time."""

_LARGEST = 1024  # entries of one segment
_LARGEST_BYTES = 1 << 20  # of one segment, but for an entry that is larger alone
_CACHED_BYTES = 16 << 20
_MAX_SEGMENT_BYTES = 256 << 20  # to be read: room for one entry with metadata of that size

_log = get_logger(__name__)
_encoder = msgspec.msgpack.Encoder()


Patiently: TypeAlias = Callable[[Callable[[], str]], str]
"""Does something, and again a few times if it fails: a segment can be written twice, for its name is its own."""


def at_once(write: Callable[[], str]) -> str:
    """Do it, once."""
    return write()


class Segment(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What one segment holds: entries at level 0, references of the level below at every other."""

    level: Natural
    entries: tuple[Entry, ...] = ()
    references: tuple[Reference, ...] = ()


_decoder = msgspec.msgpack.Decoder(Segment)


def folder_of(manifest_path: str) -> str:
    """Where the segments of a manifest lie."""
    return f"{manifest_path}.d"


def segment_time(name: str) -> int | None:
    """The ULID time in a segment's file name, in milliseconds; None where it is no segment's name.

    >>> segment_time("00000000000000000000-01ARZ3NDEKTSV4RRFFQ69G5FAV.seg")
    1469922850259
    """
    found = SEGMENT_NAME.fullmatch(name)
    return None if found is None else ulid_time(found[1])


class Segments:
    """The segments of one manifest: writes them, and reads them through a cache. Safe to share between threads.

    With `sealing_threads=1` it writes them one after the other, in the caller's thread.
    """

    def __init__(
        self,
        store: ObjectStore,
        manifest_path: str,
        names: Names,
        patiently: Patiently = at_once,
        sealing_threads: int = SEALING_THREADS,
    ) -> None:
        self._store = store
        self._folder = folder_of(manifest_path)
        self._names = names
        self._patiently = patiently
        self._sealing_threads = sealing_threads
        self._lock = threading.Lock()
        self._cache: OrderedDict[str, tuple[Segment, int]] = OrderedDict()
        self._cached = 0

    def seal(self, entries: Sequence[Entry], floor: int) -> list[Reference]:
        """Write entries as segments, and return references to them."""
        pieces = [Segment(0, entries=piece) for piece in _in_pieces(entries)]
        if len(pieces) < 2 or self._sealing_threads < 2:
            return [self._write(piece, floor) for piece in pieces]
        with ThreadPoolExecutor(self._sealing_threads, thread_name_prefix="penstock-sealing") as pool:
            return list(pool.map(lambda piece: self._write(piece, floor), pieces))

    def fold(self, references: Sequence[Reference], floor: int) -> tuple[Reference, ...]:
        """Where there are too many references, write the older half of the commonest level as an index segment."""
        kept = list(references)
        while len(kept) > MOST_REFERENCES:
            levels = [reference.level for reference in kept]
            level = max(sorted(set(levels)), key=levels.count)
            start = levels.index(level)
            stop = start + max(levels.count(level) // 2, 2)
            kept[start:stop] = [self._write(Segment(level + 1, references=tuple(kept[start:stop])), floor)]
        return tuple(kept)

    def read(self, reference: Reference) -> Segment:
        """The segment behind a reference, whole. Raises `NotFound` and `CorruptData` naming it, and `StorageError`."""
        with self._lock:
            if reference.name in self._cache:
                self._cache.move_to_end(reference.name)
                return self._checked(self._cache[reference.name][0], reference)
        path = f"{self._folder}/{reference.name}"
        data = get_at_most(self._store, path, _MAX_SEGMENT_BYTES).data
        try:
            segment = decode_segment(data, reference.name)
            _check_inside(segment)
        except CorruptData as error:
            raise CorruptData(f"{path} in {url_of(self._store)}: {error}") from error
        self._checked(segment, reference)
        self._keep(reference.name, segment, len(data))
        return segment

    def path_of(self, reference: Reference) -> str:
        """Where the segment behind a reference lies."""
        return f"{self._folder}/{reference.name}"

    def entries(self, references: Sequence[Reference], start: int, stop: int) -> Iterator[Entry]:
        """The entries from `start` up to `stop` behind references. Only what holds some of them is opened."""
        for place in range(bisect_left(references, start, key=lambda reference: reference.last), len(references)):
            reference = references[place]
            low, high = max(start, reference.first), min(stop, reference.last + 1)
            if low >= high:
                return
            segment = self.read(reference)
            if reference.level:
                yield from self.entries(segment.references, low, high)
            else:
                yield from _between(segment.entries, low, high)

    def narrowed(self, reference: Reference, first: int) -> Reference:
        """The window from `first` on, with the counts and the oldest time of what remains."""
        segment = self.read(reference)
        if reference.level:
            kept = [child for child in segment.references if child.last >= first]
            if kept[0].first < first:
                kept[0] = self.narrowed(kept[0], first)
            return _reference(reference.name, reference.level, kept, first, reference.last)
        left = _between(segment.entries, first, reference.last + 1)
        return _reference(reference.name, 0, left, first, reference.last)

    def _checked(self, segment: Segment, reference: Reference) -> Segment:
        """Every reference is checked, also that to a segment in the cache: two may name one segment and disagree."""
        try:
            _check_holds(segment, reference)
        except CorruptData as error:
            raise CorruptData(f"{self._folder}/{reference.name} in {url_of(self._store)}: {error}") from error
        return segment

    def _write(self, segment: Segment, floor: int) -> Reference:
        first = segment.entries[0].sequence if segment.entries else segment.references[0].first
        last = segment.entries[-1].sequence if segment.entries else segment.references[-1].last
        name = f"{first:020d}-{self._names.ulid(floor)}.seg"
        data = encode_segment(segment, name)
        self._patiently(lambda: self._store.put(f"{self._folder}/{name}", data))
        self._keep(name, segment, len(data))
        return _reference(name, segment.level, segment.entries or segment.references, first, last)

    def _keep(self, name: str, segment: Segment, size: int) -> None:
        with self._lock:
            if name in self._cache:
                return
            self._cache[name] = segment, size
            self._cached += size
            while self._cached > _CACHED_BYTES and len(self._cache) > 1:
                _, (_, gone) = self._cache.popitem(last=False)
                self._cached -= gone


def _reference(name: str, level: int, held: Sequence[Entry] | Sequence[Reference], first: int, last: int) -> Reference:
    times = [segment_time(name)]
    times += [one.oldest if isinstance(one, Reference) else location_time(one.location) for one in held]
    return Reference(
        name=name,
        first=first,
        last=last,
        records=sum(one.records or 0 for one in held),
        size=sum(one.size or 0 for one in held),
        oldest=min(time for time in times if time is not None),
        level=level,
    )


def _between(entries: Sequence[Entry], start: int, stop: int) -> Sequence[Entry]:
    first = entries[0].sequence
    return entries[max(start - first, 0) : max(stop - first, 0)]


def encode_segment(segment: Segment, name: str) -> bytes:
    """The bytes of a segment with this file name: under another name they are not right."""
    body = _encoder.encode(segment)
    return body + trailer(body, VERSION, SEGMENT_MAGIC, name)


def decode_segment(data: bytes, name: str) -> Segment:
    """Read the bytes of the segment with this file name. Raises `CorruptData` saying what is wrong."""
    version = last_u16(data)
    if version is None:
        raise CorruptData(f"a segment of {len(data)} bytes is too small")
    if magic_of(data) is None:
        raise unsupported(version, "a segment")
    body = verified_body(data, VERSION, SEGMENT_MAGIC, name)
    try:
        return _decoder.decode(body)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise CorruptData(f"a segment cannot be read: {error}") from error


def _check_inside(segment: Segment) -> None:
    """Raises `CorruptData` unless a segment holds what its level says, without a gap.

    Each level is one above that of its children, and the highest is bounded: no reading goes round, or deep.
    """
    if bool(segment.entries) is bool(segment.level) or bool(segment.references) is not bool(segment.level):
        held = f"{len(segment.entries)} entries and {len(segment.references)} references"
        raise CorruptData(f"level: it is {segment.level}, and it holds {held}")
    if segment.level:
        due = segment.references[0].first
        for child in segment.references:
            check_reference(child, due)
            if child.level != segment.level - 1:
                raise CorruptData(f"level: {child.name} has {child.level} in a segment of {segment.level}")
            due = child.last + 1
    else:
        due = segment.entries[0].sequence
        for entry in segment.entries:
            if entry.sequence != due:
                raise CorruptData(f"entries: sequence {entry.sequence} is there where {due} is due")
            due += 1


def _check_holds(segment: Segment, reference: Reference) -> None:
    """Raises `CorruptData` unless a segment that was looked at inside holds what a reference says."""
    if segment.level != reference.level:
        raise CorruptData(f"level: it is {segment.level}, and its reference says {reference.level}")
    first = segment.references[0].first if segment.level else segment.entries[0].sequence
    last = segment.references[-1].last if segment.level else segment.entries[-1].sequence
    if not first <= reference.first <= reference.last <= last:
        raise CorruptData(f"it holds {first} to {last}, and its reference says {reference.first} to {reference.last}")


def _in_pieces(entries: Sequence[Entry]) -> Iterator[tuple[Entry, ...]]:
    piece: list[Entry] = []
    size = 0
    for entry in entries:
        own = len(_encoder.encode(entry))
        if piece and (len(piece) >= _LARGEST or size + own > _LARGEST_BYTES):
            yield tuple(piece)
            piece, size = [], 0
        piece.append(entry)
        size += own
    if piece:
        yield tuple(piece)
