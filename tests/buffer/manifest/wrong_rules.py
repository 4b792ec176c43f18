"""Rules that look right and are not: each of them was proposed once, and each loses something.

A wrong operation is a state with that operation changed; a wrong collector is a state with other rules of collecting.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any
from uuid import UUID

import msgspec

from penstock.buffer.locations import TimeRanges, location_time
from penstock.buffer.manifest.cas import Versioned
from penstock.buffer.manifest.formats import Formats
from penstock.buffer.manifest.state import Collecting, CycleClock, Fate, Group, QueueState
from penstock.buffer.manifest.v2.collecting import NativeCollecting, ulid_time_of
from penstock.buffer.manifest.v2.head import Head, Reference, unborn_head
from penstock.buffer.manifest.v2.segments import Segments
from penstock.buffer.manifest.v2.state import NativeState
from penstock.errors import StorageError
from penstock.storage import ObjectMeta, ObjectStore
from penstock.storage.object_store import Data
from tests.buffer.manifest.auditor import FOLDER, MANIFEST
from tests.buffer.manifest.world import SMALL, Rules


def collecting(rules: type[NativeCollecting]) -> type[NativeState]:
    """A state whose collectors go by other rules."""

    class Collected(NativeState):
        def collecting(self, clock: CycleClock, segments: Segments) -> Collecting:
            return rules(self, clock, segments)

    return Collected


class WithoutFloor(NativeCollecting):
    """Deletes what no entry names and is older than the grace period, by its ULID and this host's clock."""

    has_segments = False
    can_close = False

    @property
    def latest(self) -> int:
        """What is named before this is old."""
        return self.now - self.times.grace

    def fate(self, meta: ObjectMeta) -> Fate:
        return Fate.DELETE if ulid_time_of(meta.path) < self.latest else Fate.KEEP

    def kept(
        self, found: Versioned[QueueState], listed: Mapping[str, ObjectMeta], is_over: Callable[[], bool]
    ) -> set[str]:
        state = found.state
        return {entry.location for entry in state.entries(state.first_sequence, state.next_sequence, self.segments)} & {
            *listed
        }


class DeletesAtOnce(WithoutFloor):
    """Deletes below the floor that it would set, without setting it first."""

    @property
    def latest(self) -> int:
        """The floor that it would set."""
        return self.floor_of(self.head, self.now - self.times.grace)

    def kept(
        self, found: Versioned[QueueState], listed: Mapping[str, ObjectMeta], is_over: Callable[[], bool]
    ) -> set[str]:
        return set()


class DeletesTheFutureByAge(WithoutFloor):
    """Deletes what is dated far ahead, not named, and old in the store's time: nothing keeps it from being named."""

    def fate(self, meta: ObjectMeta) -> Fate:
        is_ahead = ulid_time_of(meta.path) > self.times.last_sign + 86_400_000
        return Fate.DELETE if is_ahead and self.times.is_old(meta) else Fate.KEEP


class ClosesWhatIsNamed(NativeCollecting):
    """Closes the times of what is dated far ahead, named or not."""

    def ranges_for(self, head: Head, is_over: Callable[[], bool]) -> TimeRanges:
        return self.to_close.ranges


class ClosesWhatTheTailDoesNotName(ClosesWhatIsNamed):
    """Closes the times of what is dated far ahead, unless the tail names it: what is sealed it does not look at."""

    def ranges_for(self, head: Head, is_over: Callable[[], bool]) -> TimeRanges:
        for entry in head.tail:
            self.to_close.spare(location_time(entry.location) or 0)
        return super().ranges_for(head, is_over)


class LooksAtTheTailOnly(NativeCollecting):
    """Does not look at what is in segments: sets a floor that is below the tail, and no more."""

    def floor_of(self, head: Head, latest: int) -> int:
        return super().floor_of(head.changed(segments=()), latest)


class NamesWhatIsBelow(NativeState):
    """Enqueues what it wrote, however long ago that was."""

    def may_name(self, at: int | None) -> bool:
        return True


class NamesWhatIsClosed(NativeState):
    """Writes again what is below the floor, and names what is in a closed range."""

    def may_name(self, at: int | None) -> bool:
        return at is None or at >= self.floor


class OpensRanges(NativeState):
    """Forgets the closed ranges with the next ack."""

    def without_acked(self, head: Head, segments: Segments) -> Head:
        return msgspec.structs.replace(super().without_acked(head, segments), closed=())


class EpochsPerGroup(NativeState):
    """Counts the takeovers of each group."""

    def with_epoch(self, name: str, acked_through: int, owner: str, now: int, segments: Segments) -> Any:
        known = self.groups.get(name)
        epoch = 1 if known is None else known.epoch + 1
        head = super().with_epoch(name, acked_through, owner, now, segments).head
        groups = {**head.groups, name: Group(epoch, acked_through, owner, now)}
        changed = msgspec.structs.replace(head, epoch=max(self.epoch, epoch), groups=groups)
        return type(self)(changed, self.where, self.limits)


class LeavesWithTheFastest(NativeState):
    """Lets go of what the group that acks is past."""

    def without_acked(self, head: Head, segments: Segments) -> Head:
        fastest = max((group.acked_through for group in head.groups.values()), default=-1)
        one = {"any": Group(0, fastest)} if head.groups else {}
        remaining = super().without_acked(msgspec.structs.replace(head, groups=one), segments)
        return msgspec.structs.replace(remaining, groups=head.groups)


class DoesNotNarrow(NativeState):
    """Moves a window, and leaves its counts and its oldest time as they were."""

    def narrowed(self, reference: Reference, start: int, segments: Segments) -> Reference:
        return msgspec.structs.replace(reference, first=start)


class BornWithoutGroup(Formats):
    """A buffer that has no group until its first consumer."""

    def new(self, manifest_format: str, buffer_id: UUID, where: str) -> QueueState:
        head = msgspec.structs.replace(unborn_head(buffer_id), groups={})
        return self.native(head, where, self.limits)


class TidiesUp:
    """Deletes the segments that were written for a head that was not written."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._new: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def put(self, path: str, data: Data) -> str:
        if path.startswith(f"{FOLDER}/"):
            self._new.append(path)
        return self._store.put(path, data)

    def put_if_absent(self, path: str, data: Data) -> str:
        return self._tidied(path, lambda: self._store.put_if_absent(path, data))

    def put_if_match(self, path: str, data: Data, version: str) -> str:
        return self._tidied(path, lambda: self._store.put_if_match(path, data, version))

    def _tidied(self, path: str, write: Callable[[], str]) -> str:
        new, self._new = self._new, []
        try:
            return write()
        except StorageError:
            if path == MANIFEST and new:
                self._store.delete(new)
            raise


def native(state: type[NativeState]) -> Rules:
    return Rules(formats=Formats(native=state, limits=SMALL))


def by_collecting(rules: type[NativeCollecting]) -> Rules:
    return native(collecting(rules))


WRONG = {
    "a collector without a floor": by_collecting(WithoutFloor),
    "a collector that does not wait for its floor": by_collecting(DeletesAtOnce),
    "an enqueue that does not look at the floor": native(NamesWhatIsBelow),
    "a collector that deletes the future by its age": by_collecting(DeletesTheFutureByAge),
    "a collector that closes the times of what is named": by_collecting(ClosesWhatIsNamed),
    "a collector that closes the times of what segments name": by_collecting(ClosesWhatTheTailDoesNotName),
    "an enqueue that does not look at the closed ranges": native(NamesWhatIsClosed),
    "ranges that are opened again": native(OpensRanges),
    "a sealer that tidies up": Rules(store=TidiesUp),
    "epochs for each group": native(EpochsPerGroup),
    "entries that leave with the fastest": native(LeavesWithTheFastest),
    "writers that are named by the path of their checkpoint": Rules(writer_of_checkpoint=lambda _: "the-same-place"),
    "groups that are born late": Rules(formats=BornWithoutGroup(limits=SMALL)),
    "windows that keep their counts": native(DoesNotNarrow),
}
