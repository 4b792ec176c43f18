"""Which data objects and segments a head names, through its segments too. One segment is in memory at a time."""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence

from penstock.buffer.manifest.v2.head import Entry, Head, Reference
from penstock.buffer.manifest.v2.segments import Segments


def named_objects(
    head: Head, segments: Segments, *, through: int | None = None, known: Container[str] = ()
) -> Iterator[str]:
    """The path of everything that a head names.

    With `through`, segments are not opened that hold nothing as old as that ULID time, by what their references say.
    What is behind references to `known` segments is left out. Raises `NotFound` and `CorruptData` naming a segment.
    """
    yield from (entry.location for entry in head.tail)
    yield from _behind(head.segments, head.first_sequence, segments, through, known)


def _behind(
    references: Sequence[Reference], first: int, segments: Segments, through: int | None, known: Container[str]
) -> Iterator[str]:
    for reference in references:
        # A window may begin behind its segment's first entry, and so does what is below it.
        if reference.last < first or reference.name in known:
            continue
        yield segments.path_of(reference)
        if through is not None and reference.oldest > through:
            continue
        segment = segments.read(reference)
        start = max(first, reference.first)
        if reference.level:
            yield from _behind(segment.references, start, segments, through, known)
        else:
            yield from (entry.location for entry in _from(segment.entries, start) if entry.sequence <= reference.last)


def _from(entries: Sequence[Entry], start: int) -> Sequence[Entry]:
    return entries[max(start - entries[0].sequence, 0) :]
