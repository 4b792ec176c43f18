"""Rules that look right and are not: each of them was proposed once, and each loses something."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import cast
from uuid import UUID

import msgspec

from penstock.buffer.collector.collector import Cycle, GarbageCollector
from penstock.buffer.collector.report import GcReport
from penstock.buffer.collector.times import CycleTimes
from penstock.buffer.descriptors import NewEntry
from penstock.buffer.locations import is_data_path, location_time
from penstock.buffer.manifest.state import Rewrite
from penstock.buffer.manifest.time_ranges import RangesToClose
from penstock.buffer.manifest.v2 import queue as native_queue
from penstock.buffer.manifest.v2.head import Group, Head, Reference, unborn_head
from penstock.buffer.manifest.v2.queue import NativeQueue, NativeView
from penstock.buffer.manifest.v2.segments import Segments
from penstock.errors import StorageError
from penstock.storage import Reserve
from tests.buffer.manifest.auditor import FOLDER
from tests.buffer.manifest.world import Rules


class WithoutFloor(GarbageCollector):
    """Deletes what no entry names and is older than the grace period, by its ULID and this host's clock."""

    def _collect_native(self, view: NativeView, cycle: Cycle) -> GcReport:
        found = self._data_objects()
        view = cast(NativeView, self._queue.look())
        named = {entry.location for entry in view.entries(view.first_sequence, view.next_sequence)}
        latest = (self._clock() - self._config.gc_grace_period) * 1000
        return self._delete_all([at for at in found if (location_time(at) or 0) < latest and at not in named])

    def _data_objects(self) -> list[str]:
        prefix = self._config.data_path_prefix
        return [meta.path for meta in self._store.list_objects(prefix) if is_data_path(meta.path, prefix)]

    def _delete_all(self, paths: list[str]) -> GcReport:
        failed = self._delete(paths) if paths else []
        return GcReport(len(paths) - len(failed), len(failed), 0)


class DeletesAtOnce(WithoutFloor):
    """Deletes below the floor that it would set, without setting it first."""

    def _collect_native(self, view: NativeView, cycle: Cycle) -> GcReport:
        head, latest = view.head, int((self._clock() - self._config.gc_grace_period) * 1000)
        times = [reference.oldest for reference in head.segments]
        times += [at for entry in head.tail if (at := location_time(entry.location)) is not None]
        floor = min([latest, *times])
        return self._delete_all([path for path in self._data_objects() if (location_time(path) or 0) < floor])


class DeletesTheFutureByAge(WithoutFloor):
    """Deletes what is dated far ahead, not named, and old in the store's time: nothing keeps it from being named."""

    def _collect_native(self, view: NativeView, cycle: Cycle) -> GcReport:
        prefix = self._config.data_path_prefix
        listed = [meta for meta in self._store.list_objects(prefix) if is_data_path(meta.path, prefix)]
        view = cast(NativeView, self._queue.look())
        named = {entry.location for entry in view.entries(view.first_sequence, view.next_sequence)}
        assert view.last_modified is not None
        horizon = (view.last_modified.timestamp() + 86_400) * 1000
        old = view.last_modified - timedelta(seconds=self._config.gc_grace_period)
        ahead = [meta.path for meta in listed if (location_time(meta.path) or 0) > horizon and meta.last_modified < old]
        return self._delete_all([path for path in ahead if path not in named])


class ClosesWhatIsNamed(GarbageCollector):
    """Closes the times of what is dated far ahead, named or not."""

    def _close_times(
        self, later: int, to_close: RangesToClose, view: NativeView, times: CycleTimes, cycle: Cycle
    ) -> None:
        queue = self._queue.native
        if queue is not None and to_close.ranges:
            ranges = to_close.ranges
            queue.close_times(lambda head: head.floor, lambda _: ranges, lambda: int(self._clock() * 1000))


class ClosesWhatTheTailDoesNotName(ClosesWhatIsNamed):
    """Closes the times of what is dated far ahead, unless the tail names it: what is sealed it takes for read."""

    def _close_times(
        self, later: int, to_close: RangesToClose, view: NativeView, times: CycleTimes, cycle: Cycle
    ) -> None:
        for entry in view.head.tail:
            to_close.spare(location_time(entry.location) or 0)
        super()._close_times(later, to_close, view, times, cycle)


class NamesWhatIsBelow(NativeQueue):
    """Enqueues what it wrote, however long ago that was."""

    def _nameable(self, head: Head, entries: Sequence[NewEntry], rewrite: Rewrite) -> Sequence[NewEntry]:
        return entries


class NamesWhatIsClosed(NativeQueue):
    """Writes again what is below the floor, and names what is in a closed range."""

    def _nameable(self, head: Head, entries: Sequence[NewEntry], rewrite: Rewrite) -> Sequence[NewEntry]:
        return super()._nameable(msgspec.structs.replace(head, closed=()), entries, rewrite)


class OpensRanges(NativeQueue):
    """Forgets the closed ranges with the next ack."""

    def _left(self, head: Head) -> Head:
        return msgspec.structs.replace(super()._left(head), closed=())


class TidiesUp(NativeQueue):
    """Deletes the segments that it wrote for a head that was not written."""

    def _write(self, found: NativeView, changed: Head, reserve: Reserve = Reserve.USE) -> NativeView:
        try:
            return super()._write(found, changed, reserve)
        except StorageError:
            known = {reference.name for reference in found.head.segments}
            new = [reference for reference in changed.segments if reference.name not in known]
            self._object.store.delete([f"{FOLDER}/{reference.name}" for reference in new])
            raise


class EpochsPerGroup(NativeQueue):
    """Counts the takeovers of each group."""

    def _taken(self, head: Head, name: str, acked_through: int, how: str = "") -> Head:
        known = head.groups.get(name)
        epoch = 1 if known is None else known.epoch + 1
        group = Group(epoch, acked_through, self._owner + how, self._now())
        return self._left(head.changed(epoch=max(head.epoch, epoch), groups={**head.groups, name: group}))


class LeavesWithTheFastest(NativeQueue):
    """Lets go of what the group that acks is past."""

    def _left(self, head: Head) -> Head:
        fastest = max((group.acked_through for group in head.groups.values()), default=-1)
        one = {"any": Group(0, fastest)} if head.groups else {}
        return msgspec.structs.replace(super()._left(msgspec.structs.replace(head, groups=one)), groups=head.groups)


class DoesNotNarrow(Segments):
    """Moves a window, and leaves its counts and its oldest time as they were."""

    def narrowed(self, reference: Reference, first: int) -> Reference:
        return msgspec.structs.replace(reference, first=first)


def born_without_a_group(buffer_id: UUID) -> Head:
    return msgspec.structs.replace(unborn_head(buffer_id), groups={})


WRONG = {
    "a collector without a floor": Rules(collector=WithoutFloor),
    "a collector that does not wait for its floor": Rules(collector=DeletesAtOnce),
    "an enqueue that does not look at the floor": Rules(queue=NamesWhatIsBelow),
    "a collector that deletes the future by its age": Rules(collector=DeletesTheFutureByAge),
    "a collector that closes the times of what is named": Rules(collector=ClosesWhatIsNamed),
    "a collector that closes the times of what segments name": Rules(collector=ClosesWhatTheTailDoesNotName),
    "an enqueue that does not look at the closed ranges": Rules(queue=NamesWhatIsClosed),
    "ranges that are opened again": Rules(queue=OpensRanges),
    "a sealer that tidies up": Rules(queue=TidiesUp),
    "epochs for each group": Rules(queue=EpochsPerGroup),
    "entries that leave with the fastest": Rules(queue=LeavesWithTheFastest),
    "writers that are named by the path of their checkpoint": Rules(writer_of_checkpoint=lambda _: "the-same-place"),
    "groups that are born late": Rules(patches=((native_queue, "unborn_head", born_without_a_group),)),
    "windows that keep their counts": Rules(patches=((native_queue, "Segments", DoesNotNarrow),)),
}
