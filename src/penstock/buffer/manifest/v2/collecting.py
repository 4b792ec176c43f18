"""What a collector may delete on version 2: what is below the floor or in a closed range, a grace period later.

Why that is safe, with any clocks, is in `docs/design/native-manifest.md`. Times are milliseconds since 1970.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, ClassVar, cast

from penstock.buffer.locations import LAST_ULID_MS, TimeRanges, joined_ranges, location_time, segment_time
from penstock.buffer.manifest.cas import Versioned
from penstock.buffer.manifest.state import CycleClock, CycleScope, Fate, QueueState
from penstock.buffer.manifest.v2.head import Head
from penstock.buffer.manifest.v2.segments import Segments, between
from penstock.core import get_logger
from penstock.storage import ObjectMeta

if TYPE_CHECKING:
    from penstock.buffer.manifest.v2.state import NativeState

MOST_RANGES = 64
"""How many a head has at most. Each is of one clock that was wrong for a while; a floor that passes one removes it."""

_DAY_MS = 86_400_000
_MAX_GAP_MS = 3_600_000  # between two times that become one range, if nothing is named between them
_NAMES_PER_LOOK_AT_THE_TIME = 1_000  # more than a head has by itself: without segments to open it is read whole

_log = get_logger(__name__)


class CycleTimes:
    """What time it is for one cycle, with a clock that may be wrong.

    `last_sign` is the store's last sign of life that the cycle knows: the mark of its own turn is one of right now, and
    what the manifest's date is worth depends on who writes it. A floor by a clock that is ahead would make every
    producer name its objects after it, and put off all collecting until then. So no clock is believed beyond a grace
    period after the mark, or a day after the manifest's date. Names are far ahead when they are a day beyond both
    clock and store.
    """

    def __init__(self, clock: CycleClock) -> None:
        self._clock = clock.clock
        self.grace = int(clock.grace * 1000)
        written, marked = _ms(clock.written), _ms(clock.marked)
        self.last_sign = max(written, marked)
        far = max(_DAY_MS, 2 * self.grace)
        self._latest = marked + self.grace if marked else written + far
        self.horizon = min(max(int(clock.clock() * 1000), self.last_sign) + far, LAST_ULID_MS)

    def now(self) -> int:
        """The clock's time, as far as it is believed."""
        return min(int(self._clock() * 1000), self._latest)

    def is_old(self, meta: ObjectMeta) -> bool:
        """Whether an object was written a grace period before the last sign of life: both are the store's times."""
        return _ms(meta.last_modified) <= self.last_sign - self.grace


class NativeCollecting:
    """The rules of one cycle on a manifest of version 2. It notes what it has seen, for the floor of the next cycle."""

    has_segments: ClassVar[bool] = True

    def __init__(self, state: NativeState, clock: CycleClock, segments: Segments) -> None:
        self.head = state.head
        self._where = state.where
        self.times = CycleTimes(clock)
        self.now = self.times.now()
        self.segments = segments
        self.to_close = RangesToClose(self.head.closed)
        self._next_floor = max(self.floor_of(self.head, self.now - self.times.grace), self.head.floor)
        floor, horizon, head = self._next_floor, self.times.horizon, self.head
        closed = [(max(first, floor), min(last, horizon)) for first, last in head.closed]
        self.scope = CycleScope(
            entries=head.next_sequence - head.first_sequence,
            floor=head.floor,
            waits_until=head.floor_set_at + self.times.grace if head.floor or head.closed else 0,
            ranges=[(0, floor - 1), *closed, (max(horizon + 1, floor), LAST_ULID_MS)],
        )
        self._has_later = False
        self._ahead_count, self._last_ahead = 0, 0
        self._latest: int | None = None
        self._looked_through: frozenset[str] = frozenset()

    @property
    def warning(self) -> str | None:
        """What was dated ahead of this clock."""
        if not self._ahead_count:
            return None
        full = "; some of these have to wait too, for the head has no place for more such ranges"
        seconds = (self._last_ahead - self.now) / 1000
        return (
            f"{self._ahead_count} objects of {self._where} are dated up to {seconds:.0f} s "
            "ahead of this clock: some host's clock is or was wrong; they are kept until that time has come, or, dated "
            f"more than a day ahead, until they are acked{full if self.to_close.is_full else ''}"
        )

    @property
    def can_close(self) -> bool:
        """Whether the floor before is carried out: else collectors that run often would put it off for ever."""
        return self.now >= self.scope.waits_until and (self._has_later or bool(self.to_close.ranges))

    def fate(self, meta: ObjectMeta) -> Fate:
        at = ulid_time_of(meta.path)
        if not self.head.may_name(at):
            return Fate.WAITS if self.now < self.scope.waits_until else Fate.DELETE
        if at < self._next_floor:
            self._has_later = True
            return Fate.LATER
        if at <= self.now + self.times.grace:
            return Fate.KEEP
        self._ahead_count, self._last_ahead = self._ahead_count + 1, max(self._last_ahead, at)
        # Not what a producer may be about to enqueue: that is safe too, but it would be written twice.
        if at > self.times.horizon and self.times.is_old(meta):
            self.to_close.add(at)
        return Fate.AHEAD

    def kept(
        self, found: Versioned[QueueState], listed: Mapping[str, ObjectMeta], is_over: Callable[[], bool]
    ) -> set[str]:
        """Which of the objects the head names, whatever its floor says; it was read after they were listed.

        In a sound head nothing is as old as what is below its floor, and so no segment is opened to find out.
        """
        if found.version is None or not found.state.guards_new_objects:
            return set(listed)
        head = cast("NativeState", found.state).head
        newest = max(ulid_time_of(path) for path in listed)
        named = set()
        for count, path in enumerate(self._named(head, through=newest), 1):
            if path in listed:
                named.add(path)
            if count % _NAMES_PER_LOOK_AT_THE_TIME == 0 and is_over():
                return set(listed)
        if named:
            _log.error(
                "%d objects are named by %s and collectable by its floor, such as %s: they are kept; the manifest "
                "is damaged, or a program that does not know the floor has written it",
                len(named),
                found.state.where,
                min(named),
            )
        return named

    def closed_in(self, state: QueueState, is_over: Callable[[], bool]) -> QueueState | None:
        """The head with a higher floor and more closed ranges; None where neither changes. Neither is taken back.

        When is noted after the head was read: who acks just before has a whole grace period to fetch what it holds.
        """
        if not state.guards_new_objects:
            return None
        if self._latest is None:
            self._latest = self.times.now() - self.times.grace if self._has_later else 0
            self.to_close.join_to_closed()
        state = cast("NativeState", state)
        head = state.head
        ranges = self.ranges_for(head, is_over) if self.to_close.ranges else ()
        floor = max(self.floor_of(head, self._latest), head.floor)
        closed = _above(floor, joined_ranges((*head.closed, *ranges)) if ranges else head.closed)
        if len(closed) > MOST_RANGES:  # another collector has closed some since: what is closed stays so
            closed = _above(floor, head.closed)
        if (floor, closed) == (head.floor, head.closed):
            return None
        return replace(state, head=head.changed(floor=floor, closed=closed, floor_set_at=max(self.times.now(), 0)))

    def floor_of(self, head: Head, latest: int) -> int:
        """The highest floor that a head can have: below everything that it names, and not later than `latest`."""
        times = [reference.oldest for reference in head.segments]
        times += [at for entry in head.tail if (at := location_time(entry.location)) is not None]
        return max(min([latest, *times]), 0)

    def ranges_for(self, head: Head, is_over: Callable[[], bool]) -> TimeRanges:
        """The ranges that a head names nothing in, through its segments too.

        Of a head that follows another only what is new is looked at. None where time is up before all was seen.
        """
        for path in self._named(head, known=self._looked_through):
            if is_over():
                return ()
            self.to_close.spare(ulid_time_of(path))
        self._looked_through |= {reference.name for reference in head.segments}
        return self.to_close.ranges

    def _named(self, head: Head, *, through: int | None = None, known: Container[str] = ()) -> Iterator[str]:
        """The paths of everything that a head names. Raises `NotFound` and `CorruptData` naming a segment.

        With `through`, segments are not opened that hold nothing as old as that ULID time, by what their references
        say. What is behind references to `known` segments is not included. One segment is in memory at a time.
        """
        yield from (entry.location for entry in head.tail)
        windows = [(reference, head.first_sequence) for reference in reversed(head.segments)]
        while windows:
            reference, first = windows.pop()
            # A window may begin behind its segment's first entry, and so does what is below it.
            if reference.last < first or reference.name in known:
                continue
            yield self.segments.path_of(reference)
            if through is not None and reference.oldest > through:
                continue
            segment, start = self.segments.read(reference), max(first, reference.first)
            windows += [(child, start) for child in reversed(segment.references)]
            if not reference.level:
                yield from (entry.location for entry in between(segment.entries, start, reference.last + 1))


class RangesToClose:
    """Gathers times that are to be closed, as a few ranges, however many times there are.

    A time within an hour of another, or of a range that is closed already, joins it. `spare` takes out what is named.
    """

    def __init__(self, closed: TimeRanges) -> None:
        self._closed = closed
        self.ranges: TimeRanges = ()
        self.is_full = False
        """Whether some times were not added, because the head has no place for one more range."""

    def add(self, at: int) -> None:
        """Add a time that is not closed yet."""
        near = [one for one in self.ranges if one[0] - _MAX_GAP_MS <= at <= one[1] + _MAX_GAP_MS]
        is_after_closed = any(0 < at - last <= _MAX_GAP_MS for _, last in self._closed)
        if near or is_after_closed or len(self.ranges) + len(self._closed) < MOST_RANGES:
            times = [at, *(time for one in near for time in one)]
            others = [one for one in self.ranges if one not in near]
            self.ranges = tuple(sorted([*others, (min(times), max(times))]))
        else:
            self.is_full = True

    def spare(self, at: int) -> None:
        """Take out a time that is named: of the range that has it nothing remains from there on."""
        cut = [(first, at - 1 if first <= at <= last else last) for first, last in self.ranges]
        self.ranges = tuple((first, last) for first, last in cut if first <= last)

    def join_to_closed(self) -> None:
        """Let each range begin right after the closed one that is less than an hour before it: they become one."""
        self.ranges = tuple((self._start_of(first), last) for first, last in self.ranges)

    def _start_of(self, first: int) -> int:
        before = max((last for _, last in self._closed if last < first), default=-1 - _MAX_GAP_MS)
        return before + 1 if first - before <= _MAX_GAP_MS else first


def _above(floor: int, ranges: TimeRanges) -> TimeRanges:
    return tuple(one for one in ranges if one[1] >= floor)


def ulid_time_of(path: str) -> int:
    """The ULID time of a data object or a segment; -1 where its name has none."""
    at = location_time(path)
    at = segment_time(path.rpartition("/")[2]) if at is None else at
    return -1 if at is None else at


def _ms(when: datetime | None) -> int:
    """Milliseconds since 1970; 0 for no time."""
    return 0 if when is None else int(when.timestamp() * 1000)
