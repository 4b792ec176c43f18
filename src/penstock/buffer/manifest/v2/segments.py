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
from dataclasses import dataclass

import msgspec

from penstock.buffer.format.trailer import SEGMENT_MAGIC, trailer, verified_body
from penstock.buffer.locations import Names, folder_of, location_time, segment_time
from penstock.buffer.manifest.state import Limits, Natural
from penstock.buffer.manifest.v2.head import VERSION, Entry, Reference, check_reference
from penstock.core import get_logger
from penstock.errors import CorruptData
from penstock.storage import ObjectStore, get_at_most, url_of

SEALING_THREADS = 16
"""How many segments are written at the same time."""

_CACHED_BYTES = 16 << 20
_MAX_SEGMENT_BYTES = 256 << 20  # to be read: enough for one entry with metadata of that size

_log = get_logger(__name__)
_encoder = msgspec.msgpack.Encoder()


class Segment(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What one segment holds: entries at level 0, references of the level below at every other."""

    level: Natural
    entries: tuple[Entry, ...] = ()
    references: tuple[Reference, ...] = ()


_decoder = msgspec.msgpack.Decoder(Segment)


class Segments:
    """The segments of one manifest: writes them, and reads them through a cache. Safe to share between threads.

    With `threads=1` it writes them one after the other, in the caller's thread. `cached_bytes` bounds what it keeps.
    """

    def __init__(
        self,
        store: ObjectStore,
        manifest_path: str,
        *,
        with_retries: Callable[[Callable[[], str]], str] = lambda write: write(),
        threads: int = SEALING_THREADS,
        cached_bytes: int = _CACHED_BYTES,
    ) -> None:
        self._store = store
        self._folder = folder_of(manifest_path)
        self._with_retries = with_retries
        self._threads = threads
        self._cached_bytes = cached_bytes
        self._lock = threading.Lock()
        self._cache: OrderedDict[str, tuple[Segment, int]] = OrderedDict()
        self._cached = 0

    def write(self, new: Sequence[NewSegment]) -> None:
        """Write segments, beside each other where there are several. Each can be written twice: its name is its own."""
        if len(new) < 2 or self._threads < 2:
            for one in new:
                self._write(one)
            return
        with ThreadPoolExecutor(self._threads, thread_name_prefix="penstock-sealing") as pool:
            list(pool.map(self._write, new))

    def read(self, reference: Reference) -> Segment:
        """The segment behind a reference, whole. Raises `NotFound` and `CorruptData` naming it, and `StorageError`."""
        with self._lock:
            if reference.name in self._cache:
                self._cache.move_to_end(reference.name)
                return self._checked(self._cache[reference.name][0], reference)
        path = self.path_of(reference)
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
                yield from between(segment.entries, low, high)

    def _checked(self, segment: Segment, reference: Reference) -> Segment:
        """Every reference is checked, also that to a segment in the cache: two may name one segment and disagree."""
        try:
            _check_holds(segment, reference)
        except CorruptData as error:
            raise CorruptData(f"{self._folder}/{reference.name} in {url_of(self._store)}: {error}") from error
        return segment

    def _write(self, new: NewSegment) -> None:
        data = encode_segment(new.segment, new.reference.name)
        self._with_retries(lambda: self._store.put(self.path_of(new.reference), data))
        self._keep(new.reference.name, new.segment, len(data))

    def _keep(self, name: str, segment: Segment, size: int) -> None:
        with self._lock:
            if name in self._cache:
                return
            self._cache[name] = segment, size
            self._cached += size
            while self._cached > self._cached_bytes and len(self._cache) > 1:
                _, (_, gone) = self._cache.popitem(last=False)
                self._cached -= gone


@dataclass(frozen=True, slots=True)
class NewSegment:
    """A segment that is to be written before a head that has the reference to it."""

    reference: Reference
    segment: Segment


def sealed(entries: Sequence[Entry], names: Names, floor: int, limits: Limits) -> list[NewSegment]:
    """Entries as segments, each of which has a new name above the floor."""
    return [_named(Segment(0, entries=piece), names, floor) for piece in _in_pieces(entries, limits)]


def folded(
    references: Sequence[Reference], names: Names, floor: int, limits: Limits
) -> tuple[tuple[Reference, ...], list[NewSegment]]:
    """Where there are too many references, the older half of the commonest level becomes an index segment."""
    kept, new = list(references), list[NewSegment]()
    while len(kept) > limits.references:
        levels = [reference.level for reference in kept]
        level = max(sorted(set(levels)), key=levels.count)
        start = levels.index(level)
        stop = start + max(levels.count(level) // 2, 2)
        new.append(_named(Segment(level + 1, references=tuple(kept[start:stop])), names, floor))
        kept[start:stop] = [new[-1].reference]
    return tuple(kept), new


def narrowed(reference: Reference, first: int, read: Callable[[Reference], Segment]) -> Reference:
    """The window from `first` on, with the counts and the oldest time of what remains. `read` opens a segment."""
    segment = read(reference)
    if reference.level:
        kept = [child for child in segment.references if child.last >= first]
        if kept[0].first < first:
            kept[0] = narrowed(kept[0], first, read)
        return _reference(reference.name, reference.level, kept, first, reference.last)
    return _reference(reference.name, 0, between(segment.entries, first, reference.last + 1), first, reference.last)


def _named(segment: Segment, names: Names, floor: int) -> NewSegment:
    first = segment.entries[0].sequence if segment.entries else segment.references[0].first
    last = segment.entries[-1].sequence if segment.entries else segment.references[-1].last
    name = f"{first:020d}-{names.ulid(floor)}.seg"
    return NewSegment(_reference(name, segment.level, segment.entries or segment.references, first, last), segment)


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


def between(entries: Sequence[Entry], start: int, stop: int) -> Sequence[Entry]:
    """Those of the entries of a segment that have sequences from `start` up to `stop`."""
    first = entries[0].sequence
    return entries[max(start - first, 0) : max(stop - first, 0)]


def encode_segment(segment: Segment, name: str) -> bytes:
    """The bytes of a segment with this file name: under another name they are not right."""
    body = _encoder.encode(segment)
    return body + trailer(body, VERSION, SEGMENT_MAGIC, name)


def decode_segment(data: bytes, name: str) -> Segment:
    """Read the bytes of the segment with this file name. Raises `CorruptData` saying what is wrong."""
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


def _in_pieces(entries: Sequence[Entry], limits: Limits) -> Iterator[tuple[Entry, ...]]:
    piece: list[Entry] = []
    size = 0
    for entry in entries:
        own = len(_encoder.encode(entry))
        if piece and (len(piece) >= limits.segment_entries or size + own > limits.segment_bytes):
            yield tuple(piece)
            piece, size = [], 0
        piece.append(entry)
        size += own
    if piece:
        yield tuple(piece)
