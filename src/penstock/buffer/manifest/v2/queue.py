"""The queue behind a manifest of version 2: a small head under compare-and-set, and segments beside it.

What decides after a write that did not succeed is in `docs/design/native-manifest.md`: for an enqueue the writer's
transaction in the head, for an ack the group's, for an epoch nothing but a success reply.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from uuid import UUID

import msgspec

from penstock.buffer.descriptors import BatchDescriptor, NewEntry
from penstock.buffer.locations import Names, location_time
from penstock.buffer.manifest.cas import LOST, ManifestObject, Patience, VersionChanged
from penstock.buffer.manifest.ownership import refuse_deleted
from penstock.buffer.manifest.start import beginning, check_resumable
from penstock.buffer.manifest.state import Enqueued, InTime, Rewrite, Start, Transaction
from penstock.buffer.manifest.time_ranges import MOST_RANGES, TimeRanges, joined_ranges
from penstock.buffer.manifest.v1.codec import VERSION as OPENDATA
from penstock.buffer.manifest.v2.attempts import Attempts, out_of_order
from penstock.buffer.manifest.v2.head import (
    DEFAULT_GROUP,
    MOST_UNNAMED,
    Group,
    Head,
    Reference,
    Writer,
    decode_head,
    encode_head,
    entry_of,
    is_too_long,
    unborn_head,
    version_of,
)
from penstock.buffer.manifest.v2.segments import SEALING_THREADS, Segments
from penstock.buffer.measures import Measures
from penstock.core import get_logger
from penstock.errors import Fenced, InvalidInput, NotFound, OutcomeUnknown, PenstockError
from penstock.storage import Reserve

_YOUNG = 10.0  # seconds
_MANY = 50  # tries
_LAST_DATE = 253_402_300_799_000  # the end of the year 9999, in milliseconds

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class NativeView:
    """A head with the version of its object, as one group sees it; without a group, as it is."""

    head: Head
    segments: Segments
    version: str | None = None
    last_modified: datetime | None = None
    group: str | None = None

    @property
    def epoch(self) -> int:
        """Whose turn it is to consume."""
        return self.head.epoch if self.group is None else self.head.groups[self.group].epoch

    @property
    def first_sequence(self) -> int:
        """The first entry that the group has not acked; without a group, the first that is kept."""
        return self.head.first_sequence if self.group is None else self.head.groups[self.group].acked_through + 1

    @property
    def next_sequence(self) -> int:
        """The sequence that the next entry will get."""
        return self.head.next_sequence

    def entries(self, start: int, stop: int) -> list[BatchDescriptor]:
        """The entries with sequences from `start` up to `stop`, as far as they are there.

        Opens the segments that hold them, and no others. Raises `NotFound` for one that is gone, and `CorruptData`.
        """
        tail = self.head.tail
        first = tail[0].sequence if tail else self.head.next_sequence
        found = [entry.descriptor() for entry in tail[max(start - first, 0) : max(stop - first, 0)]]
        if start >= first:
            return found
        return [entry.descriptor() for entry in self.segments.entries(self.head.segments, start, stop)] + found


class NativeQueue:
    """The queue of one buffer, for one group of readers. Safe to share between threads, but for `enqueue`.

    `owner` is who takes epochs here, for people to read.
    """

    def __init__(
        self,
        manifest: ManifestObject,
        names: Names,
        group: str = DEFAULT_GROUP,
        *,
        prefix: str | None = None,
        owner: str | None = None,
        clock: Callable[[], float] = time.time,
        uptime: Callable[[], float] = time.monotonic,
        sealing_threads: int = SEALING_THREADS,
    ) -> None:
        self._object = manifest
        self._names = names
        self._prefix = prefix
        self._measures = Measures(manifest.label)
        self._segments = Segments(manifest.store, manifest.path, names, manifest.patiently, sealing_threads)
        self._group = group
        self._owner = f"{socket.gethostname()}:{os.getpid()}" if owner is None else owner
        self._clock = clock
        self._uptime = uptime
        self._latest: NativeView | None = None
        self._latest_at = 0.0
        self._seen: tuple[NativeView, NativeView] | None = None  # a view, and how the group sees it
        self._writer = names.writer()
        self._count = 0
        self._unborn = unborn_head(names.buffer_id())  # what this queue writes where there is no head yet
        self._id: bytes | None = None  # of the buffer, once its head was seen

    @property
    def conflict_rate(self) -> float:
        """Percent of the writes that lost a compare-and-set."""
        return self._object.conflict_rate

    @property
    def floor(self) -> int:
        """The collector's floor, as of the last read or write."""
        return 0 if self._latest is None else self._latest.head.floor

    # Which buffer it is.

    def identify(self, create: bool) -> UUID | None:
        """The buffer's id, as it is on the store; None where there is no buffer. With `create` one is created then."""
        found = self._read_patiently()
        self._check_same_buffer(found)
        if create and found.version is None:
            found = self._born(found)
        return None if found.version is None else found.head.buffer_id

    def _born(self, found: NativeView) -> NativeView:
        """The queue, its head written first where there was none. Of several that write one, one is the first."""
        pauses, patience = self._object.pauses(), Patience()
        while found.version is None:
            try:
                return self._write(found, found.head.changed(), self._object.reserve_to_create)
            except LOST as error:
                patience.lost(error)
                _log.info("creating %s: %s; reading it again", self._object.where, error)
                next(pauses)
                found = self._read_patiently()
        return found

    def _check_same_buffer(self, found: NativeView) -> None:
        """Raises `InvalidInput` where this queue's buffer was deleted: what was written for it is not another's."""
        if self._id is None or (found.version is not None and found.head.id == self._id):
            return
        now = "is gone" if found.version is None else f"is the buffer {found.head.buffer_id} now"
        raise InvalidInput(
            f"{self._object.where} {now}, and was {UUID(bytes=self._id)}: its manifest was deleted. What "
            "was to be enqueued is not known to be; open the buffer again to go on with what is there"
        )

    # Producers.

    def enqueue(
        self, entries: Sequence[NewEntry], in_time: InTime, rewrite: Rewrite, by: Transaction | None = None
    ) -> Enqueued:
        """Append entries in one write, unless the transaction that they are has happened already.

        Without a transaction the queue's own writer is it: it has a random name, and counts. Each set of entries that
        it tries is another transaction, so that the head says which of them it was.

        Raises `OutcomeUnknown` where the head has forgotten the writer meanwhile, and it cannot know; and
        `InvalidInput` for a transaction before the writer's last, or where the buffer was deleted meanwhile.
        """
        attempts = Attempts()
        pauses = self._object.pauses()
        found, is_fresh = self._kept(), False
        if found is None:
            found, is_fresh = self._read_patiently(), True
        while True:
            self._check_same_buffer(found)
            done = self._evidence(found, attempts, by)
            if done is not None:
                return done
            entries = in_time(entries)
            if not entries:
                return Enqueued(appended=False)
            entries = self._nameable(found.head, entries, rewrite)
            now = by if by is not None else self._own(attempts, entries)
            changed = self._appended(found.head, entries, now)
            # Once more: to write segments, or data again, may have taken a while.
            tried, entries = entries, in_time(entries)
            if not entries:
                return Enqueued(appended=False)
            if len(entries) < len(tried):
                continue
            attempts.note(now, found.head, tried)
            if attempts.count % _MANY == 0:
                _log.warning("enqueuing %d in %s: try %d by now", len(tried), self._object.where, attempts.count)
            try:
                written = self._write(found, changed, Reserve.KEEP)
            except LOST as error:
                _log.info("enqueuing %d in %s: %s; reading again", len(tried), self._object.where, error)
            else:
                return attempts.landed(written.head.writers[now.writer]) or Enqueued(appended=True)
            if is_fresh:
                next(pauses)
            found, is_fresh = self._read_patiently(), True

    def _kept(self) -> NativeView | None:
        """The head of the last write, while it is young: after an old one this writer may have been forgotten."""
        return self._latest if self._uptime() - self._latest_at < _YOUNG else None

    def _own(self, attempts: Attempts, entries: Sequence[NewEntry]) -> Transaction:
        known = attempts.of(entries)
        if known is not None:
            return known
        number, self._count = self._count, self._count + 1
        return Transaction(self._writer, number, is_named=False)

    def _evidence(self, found: NativeView, attempts: Attempts, by: Transaction | None) -> Enqueued | None:
        """What shows that the entries are there; None where they are not."""
        head = found.head
        writer = head.writers.get(self._writer if by is None else by.writer)
        landed = None if writer is None else attempts.landed(writer)
        if by is None and landed is not None:
            return landed
        if by is not None and self.happened(head, by) is not None and writer is not None:
            # A name can be another process's too, and so can the try: its locations tell, while they are there.
            if landed is not None and self._is_at(found, landed):
                return landed
            return Enqueued(False, writer.first_sequence, was_there=True)
        if writer is None and attempts.base is not None and head.forgotten_through > attempts.base:
            raise OutcomeUnknown(
                f"a write to {self._object.where} was not confirmed, and the manifest has forgotten its writer since "
                f"(it remembers the latest {MOST_UNNAMED}): what it wrote is not known to be enqueued"
            )
        return None

    def happened(self, head: Head, by: Transaction) -> Writer | None:
        """The record of a transaction that is its writer's last; None where it comes after that, or is the first.

        Raises `InvalidInput` for one before the last. A writer repeats its last transaction after a crash and no other:
        whether this one ever happened the head does not say.
        """
        found = head.writers.get(by.writer)
        if found is None or by.number > found.transaction:
            return None
        if by.number < found.transaction:
            raise out_of_order(by.writer, by.number, found.transaction, self._object.where)
        return found

    def _is_at(self, found: NativeView, landed: Enqueued) -> bool:
        location, sequence = next(iter(landed.sequences.items()))
        try:
            return [entry.location for entry in found.entries(sequence, sequence + 1)] == [location]
        except NotFound:
            return False  # dequeued since, and collected

    def _nameable(self, head: Head, entries: Sequence[NewEntry], rewrite: Rewrite) -> Sequence[NewEntry]:
        """The entries, those that the head may not name written again: a collector may have them by now."""
        may_name = [head.may_name(location_time(entry.location)) for entry in entries]
        if all(may_name):
            return entries
        count = len(entries) - sum(may_name)
        _log.info("writing %d objects again in %s: the collector may have them", count, self._object.where)
        self._names.keep_out_of(head.closed)  # this head's: another thread may have read an older one since
        return [entry if may else rewrite(entry, head.floor) for entry, may in zip(entries, may_name, strict=True)]

    def _appended(self, head: Head, entries: Sequence[NewEntry], by: Transaction) -> Head:
        """The head with entries at its end. Writes segments where the tail would be too long."""
        new = tuple(
            entry_of(sequence, entry.location, entry.metadata, entry.size, entry.records)
            for sequence, entry in enumerate(entries, head.next_sequence)
        )
        tail, references = head.tail + new, head.segments
        if is_too_long(tail):
            # What is too long for a tail is sealed with it: each write between the head that was read and the one that
            # is written is time for others to be first.
            is_long_alone = is_too_long(new)
            sealed = self._segments.seal(tail if is_long_alone else head.tail, head.floor)
            tail = () if is_long_alone else new
            references = self._segments.fold((*references, *sealed), head.floor)
        revision = head.revision + 1
        writers, forgotten = dict(head.writers), head.forgotten_through
        writers.pop(by.writer, None)  # to the end: the first of them is the one that has not written for longest
        writers[by.writer] = Writer(by.number, head.next_sequence, revision, self._now(), by.is_named)
        if len(writers) > MOST_UNNAMED:
            unnamed = [name for name, writer in writers.items() if not writer.is_named]
            for name in unnamed[: max(len(unnamed) - MOST_UNNAMED, 0)]:
                forgotten = max(forgotten, writers.pop(name).revision)
        return head.changed(
            next_sequence=head.next_sequence + len(new),
            tail=tail,
            segments=references,
            writers=writers,
            forgotten_through=forgotten,
        )

    # Consumers.

    def claim(self, last_acked: int | None, *, allow_gap: bool, start: Start = "earliest") -> NativeView:
        """Take a new epoch for the group, which is made if it is not there. Only a success reply grants an epoch."""
        pauses, patience = self._object.pauses(), Patience()
        while True:
            found = self._read_patiently()
            if found.version is None and self._prefix is not None:
                refuse_deleted(self._object.store, self._prefix, self._object.path, self._is_there)
            head = found.head
            group = head.groups.get(self._group)
            acked = group.acked_through if group is not None and group.epoch else self._begin(head, start) - 1
            if last_acked is not None:
                check_resumable(acked + 1, head.next_sequence, last_acked, self._object.where, allow_gap=allow_gap)
                acked = max(acked, min(last_acked, head.next_sequence - 1))
            try:
                return self._for_group(self._write(found, self._taken(head, self._group, acked)))
            except LOST as error:
                patience.lost(error)
                _log.info("taking an epoch in %s: %s; taking the next one", self._object.where, error)
                next(pauses)

    def read(self, epoch: int, *, fresh: bool = False) -> NativeView:
        """Read the queue under an epoch."""
        if fresh:
            self._latest = None
        found = self.look()
        self._check_epoch(found.head, epoch)
        return self._for_group(found)

    def dequeue(self, epoch: int, through: int) -> NativeView:
        """Ack for the group up to a sequence; what every group is past leaves."""
        pauses, patience = self._object.pauses(), Patience()
        while True:
            found = self.read(epoch)
            group = found.head.groups[self._group]
            acked = min(through, found.next_sequence - 1)
            if acked <= group.acked_through:
                return found
            groups = {**found.head.groups, self._group: msgspec.structs.replace(group, acked_through=acked)}
            try:
                return self._for_group(self._write(found, self._left(found.head.changed(groups=groups))))
            except LOST as error:
                patience.lost(error)
                _log.info("acking through %d in %s: %s; reading again", through, self._object.where, error)
                next(pauses)

    def look(self) -> NativeView:
        """Read the queue without an epoch. What has not changed since the last time is not parsed again."""
        latest = self._latest
        found = self._object.get()
        if found is None:
            view = NativeView(self._unborn, self._segments)
        elif latest is not None and latest.version == found.version:
            self._latest_at = self._uptime()
            if latest.last_modified == found.last_modified:
                return latest
            view = replace(latest, last_modified=found.last_modified)
        elif version_of(found.data) == OPENDATA:
            raise VersionChanged
        else:
            head = self._object.decoded(decode_head, found.data)
            view = NativeView(head, self._segments, found.version, found.last_modified)
        self._remember(view)
        return view

    def seen_by_group(self, found: NativeView) -> NativeView:
        """A view as the group sees it. Raises `InvalidInput` if there is no such group."""
        self._check_group(found.head, self._group)
        return self._for_group(found)

    # Everybody else: groups, writers, the collector.

    def change(self, change: Callable[[Head], Head | None], happened: Callable[[Head], bool]) -> Head:
        """Replace the head by what `change` makes of it; None: it is as it should be.

        `happened` is asked after a write that did not succeed. Raises what `change` raises, and `StorageError`.
        """
        pauses, patience = self._object.pauses(), Patience()
        in_doubt = False
        while True:
            found = self._read_patiently()
            if in_doubt and happened(found.head):
                return found.head
            changed = change(found.head)
            if changed is None:
                return found.head
            try:
                return self._write(found, changed).head
            except LOST as error:
                patience.lost(error)
                in_doubt = True
                _log.info("changing %s: %s; reading again", self._object.where, error)
                next(pauses)

    def close_times(
        self, floor_for: Callable[[Head], int], ranges_for: Callable[[Head], TimeRanges], now: Callable[[], int]
    ) -> Head:
        """Raise the collector's floor, close ranges of times above it, and note when: after the head was read.

        Neither is ever taken back. Who acks just before has a whole grace period to fetch what it holds.
        """

        def change(head: Head) -> Head | None:
            floor = max(floor_for(head), head.floor)
            closed = _above(floor, (*head.closed, *ranges_for(head)))
            if len(closed) > MOST_RANGES:  # another collector has closed some since: what is closed stays so
                closed = _above(floor, head.closed)
            if (floor, closed) == (head.floor, head.closed):
                return None
            return head.changed(floor=floor, closed=closed, floor_set_at=max(now(), 0))

        return self.change(change, lambda head: change(head) is None)

    def create_group(self, name: str, start: Start) -> Head:
        """Make a group that begins somewhere. Raises `InvalidInput` if it is there, or the place is not."""

        def change(head: Head) -> Head:
            if name in head.groups:
                raise InvalidInput(f"the group {name!r} is in {self._object.where} already")
            return self._taken(head, name, self._begin(head, start) - 1)

        return self._administer(name, change)

    def reset_group(self, name: str, start: Start) -> Head:
        """Let a group begin again somewhere. Fences its consumer."""

        def change(head: Head) -> Head:
            self._check_group(head, name)
            return self._taken(head, name, self._begin(head, start) - 1, ", by a reset")

        return self._administer(name, change)

    def drop_group(self, name: str, *, force: bool) -> Head:
        """Take a group away, and with it what only it held back. Fences its consumer."""

        def change(head: Head) -> Head:
            self._check_group(head, name)
            groups = {other: group for other, group in head.groups.items() if other != name}
            if not groups and not force:
                raise InvalidInput(
                    f"{name!r} is the last group of {self._object.where}: without one nothing leaves the queue any "
                    "more, and whoever comes next begins at the first entry that is kept; `--force` drops it"
                )
            return self._left(head.changed(groups=groups))

        return self._administer(name, change)

    def drop_writer(self, name: str) -> Head:
        """Forget a writer: what it sends again is appended again."""

        def change(head: Head) -> Head:
            if name not in head.writers:
                raise InvalidInput(f"no writer {name!r} is known to {self._object.where}")
            writers = {other: writer for other, writer in head.writers.items() if other != name}
            forgotten = max(head.forgotten_through, head.writers[name].revision)
            return head.changed(writers=writers, forgotten_through=forgotten)

        return self.change(change, lambda head: name not in head.writers)

    def _administer(self, name: str, change: Callable[[Head], Head]) -> Head:
        """Change one group, once: where a try may have happened and others have changed it since, it says so."""
        before: list[Group | None] = []
        tried: list[Group | None] = []

        def noted(head: Head) -> Head:
            if before and _epoch(head.groups.get(name)) != _epoch(before[0]):
                raise OutcomeUnknown(
                    f"a write to {self._object.where} was not confirmed, and the group {name!r} is another now: it may "
                    "be changed as wanted, and taken over since; look at it with `penstock groups list`"
                )
            changed = change(head)
            before.append(head.groups.get(name))
            tried.append(changed.groups.get(name))
            return changed

        return self.change(noted, lambda head: head.groups.get(name) in tried)

    # What they have in common.

    def _taken(self, head: Head, name: str, acked_through: int, how: str = "") -> Head:
        """The head with a group under a new epoch."""
        epoch = head.epoch + 1
        group = Group(epoch, acked_through, self._owner + how, self._now())
        return self._left(head.changed(epoch=epoch, groups={**head.groups, name: group}))

    def _left(self, head: Head) -> Head:
        """The head without what every group is past. With no group nothing leaves."""
        start = head.slowest
        if start <= head.first_sequence:
            return head
        references = [reference for reference in head.segments if reference.last >= start]
        if references and references[0].first < start:
            references[0] = self._narrowed(references[0], start)
        tail = tuple(entry for entry in head.tail if entry.sequence >= start)
        return msgspec.structs.replace(head, tail=tail, segments=tuple(references))

    def _narrowed(self, reference: Reference, start: int) -> Reference:
        try:
            return self._segments.narrowed(reference, start)
        except PenstockError as error:
            # It would have said how much is left, and let the collector go further. An ack does not need that.
            _log.warning("acking into the segment %s of %s: %s", reference.name, self._object.where, error)
            return reference

    def _begin(self, head: Head, start: Start) -> int:
        return beginning(start, head.first_sequence, head.next_sequence, self._object.where)

    def _check_group(self, head: Head, name: str) -> None:
        if name not in head.groups:
            raise InvalidInput(
                f"there is no group {name!r} in {self._object.where}; its groups: {', '.join(head.groups) or 'none'}"
            )

    def _check_epoch(self, head: Head, epoch: int) -> None:
        if self._id is not None and head.id != self._id:
            raise Fenced(
                f"{self._object.where} is another buffer now, or none, and was {UUID(bytes=self._id)}: its manifest "
                "was deleted since"
            )
        group = head.groups.get(self._group)
        if group is None:
            raise Fenced(f"the group {self._group!r} of {self._object.where} is gone: somebody has dropped it")
        if group.epoch != epoch:
            if not group.epoch:
                raise Fenced(f"the manifest {self._object.where} is gone, or another one: {self._group!r} is new in it")
            raise Fenced(
                f"a newer consumer has taken over the group {self._group!r} of {self._object.where}: {_taker(group)}; "
                f"its epoch is {group.epoch}, and this one's {epoch}"
            )

    def _now(self) -> int:
        return max(int(self._clock() * 1000), 0)

    def _for_group(self, found: NativeView) -> NativeView:
        seen = self._seen
        if seen is None or seen[0] is not found:
            self._seen = seen = (found, replace(found, group=self._group))
        return seen[1]

    def _is_there(self) -> bool:
        return self._read_patiently().version is not None

    def _read_patiently(self) -> NativeView:
        return self._object.patiently(self.look)

    def _write(self, found: NativeView, changed: Head, reserve: Reserve = Reserve.USE) -> NativeView:
        version = self._object.replace(found.version, encode_head(changed), reserve)
        view = NativeView(changed, self._segments, version)
        self._remember(view)
        return view

    def _remember(self, view: NativeView) -> None:
        head, before = view.head, self._latest
        self._names.keep_out_of(head.closed)
        self._latest = view if view.version is not None else None
        if self._id is None and view.version is not None:
            self._id = head.id
        self._latest_at = self._uptime()
        for gone in () if before is None else before.head.groups.keys() - head.groups.keys():
            self._measures.forget_group(gone)
        self._measures.queue_length.set(head.next_sequence - head.first_sequence)
        for name, group in head.groups.items():
            self._measures.group_lag(name).set(head.next_sequence - 1 - group.acked_through)


def _above(floor: int, ranges: TimeRanges) -> TimeRanges:
    return tuple(one for one in joined_ranges(ranges) if one[1] >= floor)


def _epoch(group: Group | None) -> int | None:
    return None if group is None else group.epoch


def _taker(group: Group) -> str:
    if not group.taken_at:
        return "on version 1, before it was upgraded"
    since = datetime.fromtimestamp(min(max(group.taken_at, 0), _LAST_DATE) / 1000, UTC)
    return f"{group.owner}, at {since:%Y-%m-%d %H:%M:%S} UTC"
