"""Rules that look right and are not: each of them was proposed once, and each loses something."""

from __future__ import annotations

import msgspec

from penstock.buffer import native_queue
from penstock.buffer.collector import GarbageCollector, GcReport
from penstock.buffer.descriptors import NewEntry
from penstock.buffer.locations import location_time
from penstock.buffer.native_head import NEW, Group, Head, Reference
from penstock.buffer.native_queue import NativeQueue, NativeView
from penstock.buffer.queue_manifest import Rewrite
from penstock.buffer.segments import Segments
from penstock.errors import StorageError
from penstock.storage import ObjectMeta
from tests.buffer.native.auditor import FOLDER
from tests.buffer.native.world import Rules


class WithoutFloor(GarbageCollector):
    """Deletes what no entry names and is older than the grace period, by its ULID and this host's clock."""

    def _collect_below_floor(self, queue: NativeQueue, view: NativeView, data: list[ObjectMeta]) -> GcReport:
        view = queue.look()
        named = {entry.location for entry in view.entries(view.first_sequence, view.next_sequence)}
        latest = (self._clock() - self._config.gc_grace_period) * 1000
        old = [meta.path for meta in data if (location_time(meta.path) or 0) < latest and meta.path not in named]
        return self._collect(old, len(data))


class DeletesAtOnce(GarbageCollector):
    """Deletes below the floor that it would set, without setting it first."""

    def _collect_below_floor(self, queue: NativeQueue, view: NativeView, data: list[ObjectMeta]) -> GcReport:
        head, latest = view.head, int((self._clock() - self._config.gc_grace_period) * 1000)
        times = [reference.oldest for reference in head.segments]
        times += [at for entry in head.tail if (at := location_time(entry.location)) is not None]
        floor = min([latest, *times])
        return self._collect([meta.path for meta in data if (location_time(meta.path) or 0) < floor], len(data))


class NamesWhatIsBelow(NativeQueue):
    """Enqueues what it wrote, however long ago that was."""

    def _above(self, floor: int, entries: list[NewEntry], rewrite: Rewrite) -> list[NewEntry]:  # type: ignore[override]
        return entries


class TidiesUp(NativeQueue):
    """Deletes the segments that it wrote for a head that was not written."""

    def _write(self, found: NativeView, changed: Head) -> NativeView:
        try:
            return super()._write(found, changed)
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


BORN_LATE = msgspec.structs.replace(NEW, groups={})

WRONG = {
    "a collector without a floor": Rules(collector=WithoutFloor),
    "a collector that does not wait for its floor": Rules(collector=DeletesAtOnce),
    "an enqueue that does not look at the floor": Rules(queue=NamesWhatIsBelow),
    "a sealer that tidies up": Rules(queue=TidiesUp),
    "epochs for each group": Rules(queue=EpochsPerGroup),
    "entries that leave with the fastest": Rules(queue=LeavesWithTheFastest),
    "writers that are named by the path of their checkpoint": Rules(writer_of_checkpoint=lambda _: "the-same-place"),
    "groups that are born late": Rules(patches=((native_queue, "NEW", BORN_LATE),)),
    "windows that keep their counts": Rules(patches=((native_queue, "Segments", DoesNotNarrow),)),
}
