"""What a repair of a durable queue has found."""

from __future__ import annotations

from dataclasses import dataclass, replace

from penstock.queue.checking import Whole
from penstock.queue.damage import named, shown, some_events
from penstock.queue.mark import MarkRecord
from penstock.queue.totals import Totals

_MOST_RANGES = 100  # that are listed
_SHOWN = 10  # ranges in one line


@dataclass(frozen=True, slots=True)
class QueueRepair:
    """What was kept of a damaged queue, and what was lost. `damage` is empty if it was whole; then nothing was done.

    `missing_ids` are ranges of ids, first and last, in which the lost events are: ids that were given, and are neither
    there nor known to be acked. `lost_at_most` and `again_at_most` are None where the mark was lost too: then it is not
    known. `damaged_files` is the folder in which the damaged files are now.
    """

    path: str
    damage: str = ""
    damaged_files: str = ""
    kept: int = 0
    first_id: int | None = None
    last_id: int | None = None
    lost_at_least: int = 0
    lost_at_most: int | None = 0
    again_at_most: int | None = 0
    """How many acked events may come again, because their acks are lost."""
    missing_ids: tuple[tuple[int, int], ...] = ()
    more_ranges: int = 0
    """How many more ranges of missing ids there are than are listed."""
    next_id: int = 0

    @classmethod
    def of_whole(cls, path: str, whole: Whole) -> QueueRepair:
        """The report of a queue that needs no repair."""
        keys = whole.inventory
        last = keys.next_id - 1 if keys.count else None
        return cls(path, kept=keys.count, first_id=keys.first_id, last_id=last, next_id=whole.totals.next_id)

    def summary(self) -> str:
        """What happened, in one line."""
        if not self.damage:
            return f"{named(self.path)} is whole: {some_events(self.kept)}, and nothing was changed"
        return (
            f"{named(self.path)} was damaged, and is repaired: {some_events(self.kept)} kept"
            f"{'' if self.first_id is None else f' (ids {self.first_id} to {self.last_id})'}, {self._lost()} lost"
            f"{self._where()}{self._again()}. The next id is {self.next_id}. The damaged files are in "
            f"{shown(self.damaged_files)}"
        )

    def _lost(self) -> str:
        if self.lost_at_most is None:
            return f"at least {self.lost_at_least:,}" if self.lost_at_least else "an unknown number"
        if self.lost_at_least == self.lost_at_most:
            return f"{self.lost_at_most:,}" if self.lost_at_most else "none"
        return f"{self.lost_at_least:,} to {self.lost_at_most:,}"

    def _where(self) -> str:
        if self.lost_at_most == 0 or not self.missing_ids:
            return ""
        ranges = [f"{first}" if first == last else f"{first} to {last}" for first, last in self.missing_ids[:_SHOWN]]
        more = len(self.missing_ids) + self.more_ranges - len(ranges)
        return f" (of the ids {', '.join(ranges)}{f', and {more} more ranges' if more else ''})"

    def _again(self) -> str:
        if self.again_at_most is None:
            return "; acked events may come again"
        count = self.again_at_most
        return f"; up to {some_events(count)} that had been acked may come again" if count else ""

    def as_json(self) -> bytes:
        """The report as it is kept beside the damaged files."""
        import msgspec  # here: most queues are never repaired

        return msgspec.json.format(msgspec.json.encode(self), indent=2)


class Count:
    """Counts the ids that are kept, which come in order, and the gaps between them."""

    def __init__(self, start: int) -> None:
        self.totals = Totals()
        self.first: int | None = None
        self.gaps: list[tuple[int, int]] = []
        self.more_gaps = 0
        self._start = start
        self._after = start

    def add(self, identifier: int) -> None:
        """Count an id."""
        self._skip_to(identifier)
        self._after = identifier + 1
        self.first = identifier if self.first is None else self.first
        one = self.totals
        self.totals = Totals(identifier + 1, one.on_disk + 1, (one.id_sum + identifier) % (1 << 64))

    def report(self, into: QueueRepair, mark: MarkRecord | None, stored: Totals | None, next_id: int) -> QueueRepair:
        """Compare what is kept with what there should be, by the mark and by the totals in the database."""
        known = [totals for totals in (mark and mark.totals, stored and stored.with_run(self._after)) if totals]
        self._skip_to(max((totals.next_id for totals in known), default=self._after))
        kept = self.totals.on_disk
        report = replace(
            into,
            kept=kept,
            first_id=self.first,
            last_id=self.totals.next_id - 1 if kept else None,
            missing_ids=tuple(self.gaps),
            more_ranges=self.more_gaps,
            next_id=next_id,
            lost_at_most=None,
            again_at_most=None,
        )
        if not known:
            return report
        # The one that was written last knows best. Lost minus again is exact: both are bounded by it.
        expected = max(known, key=lambda totals: (totals.acks, totals.next_id))
        again = min(self._acks_missing(expected, stored), kept)
        least = max(expected.on_disk - kept, 0)
        if mark is None:
            return replace(report, lost_at_least=least)
        most = max(min(expected.on_disk - kept + again, expected.on_disk, self._in_gaps()), least)
        return replace(
            report, lost_at_least=least, lost_at_most=most, again_at_most=max(kept - expected.on_disk + most, 0)
        )

    def _acks_missing(self, expected: Totals, stored: Totals | None) -> int:
        """How many acks may be missing: those after the totals in the database, if all is there that they count."""
        if stored is not None:
            then = stored.with_run(self.totals.next_id)
            if (then.on_disk, then.id_sum) == (self.totals.on_disk, self.totals.id_sum):
                return max(expected.acks - stored.acks, 0)
        return expected.acks

    def _skip_to(self, identifier: int) -> None:
        if identifier <= self._after:
            return
        if len(self.gaps) < _MOST_RANGES:
            self.gaps.append((self._after, identifier - 1))
        else:
            self.more_gaps += 1
        self._after = identifier

    def _in_gaps(self) -> int:
        """How many ids are in the gaps."""
        return self._after - self._start - self.totals.on_disk
