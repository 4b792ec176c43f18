"""The times that one cycle on version 2 goes by: what is past, what is far ahead, and what can be closed."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from penstock.buffer.collector.turns import Turn
from penstock.buffer.locations import LAST_ULID_MS, location_time
from penstock.buffer.manifest.state import QueueView
from penstock.buffer.manifest.time_ranges import RangesToClose, TimeRanges
from penstock.buffer.manifest.v2.head import Head
from penstock.buffer.manifest.v2.named_objects import named_objects
from penstock.buffer.manifest.v2.segments import Segments, segment_time
from penstock.storage import ObjectMeta

_DAY_MS = 86_400_000


class CycleTimes:
    """What time it is for one cycle, in milliseconds since 1970, with a clock that may be wrong.

    `last_sign` is the store's last sign of life that the cycle knows: its own turn's mark is one of right now, and what
    the manifest's date is worth depends on who writes it. A floor by a clock that is ahead of it would have everybody
    name what they write after it, and put off all collecting till then: beyond a grace period after the one, and a day
    after the other, no clock is believed. Names are far ahead when they are a day beyond both clock and store.
    """

    def __init__(self, clock: Callable[[], float], grace: float, view: QueueView, turn: Turn | None) -> None:
        self._clock = clock
        self.grace = int(grace * 1000)
        written, marked = _ms(view.last_modified), _ms(None if turn is None else turn.taken_at)
        self.last_sign = max(written, marked)
        far = max(_DAY_MS, 2 * self.grace)
        self._latest = marked + self.grace if marked else written + far
        self.horizon = min(max(int(clock() * 1000), self.last_sign) + far, LAST_ULID_MS)

    def now(self) -> int:
        """The clock's time, as far as it is believed."""
        return min(int(self._clock() * 1000), self._latest)

    def is_old(self, meta: ObjectMeta) -> bool:
        """Whether an object was written a grace period before the last sign of life: both are the store's times."""
        return _ms(meta.last_modified) <= self.last_sign - self.grace


class Closing:
    """The ranges that can be closed in a head: those that it names nothing in, through its segments too."""

    def __init__(self, to_close: RangesToClose, segments: Segments, is_over: Callable[[], bool]) -> None:
        self._to_close = to_close
        self._segments = segments
        self._is_over = is_over
        self._known: frozenset[str] = frozenset()
        to_close.join_to_closed()

    def ranges_for(self, head: Head) -> TimeRanges:
        """What is left to be closed; of a head that follows another only what is new is looked at.

        Nothing where time is up before everything that is named was seen.
        """
        if self._to_close.ranges:
            for path in named_objects(head, self._segments, known=self._known):
                if self._is_over():
                    return ()
                self._to_close.spare(ulid_time_of(path))
            self._known |= {reference.name for reference in head.segments}
        return self._to_close.ranges


def floor_for(head: Head, latest: int) -> int:
    """The highest floor that a head can have: below everything that it names, and not later than `latest`."""
    times = [reference.oldest for reference in head.segments]
    times += [at for entry in head.tail if (at := location_time(entry.location)) is not None]
    return max(min([latest, *times]), 0)


def ulid_time_of(path: str) -> int:
    """The ULID time of a data object or a segment; -1 where its name has none."""
    at = location_time(path)
    at = segment_time(path.rpartition("/")[2]) if at is None else at
    return -1 if at is None else at


def _ms(when: datetime | None) -> int:
    """Milliseconds since 1970; 0 for no time."""
    return 0 if when is None else int(when.timestamp() * 1000)
