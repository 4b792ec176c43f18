"""`BufferQueue`: the queue of a buffer, which is all that producers, consumers, collectors and commands see of it.

Each read decodes the version that is there. So an upgrade is met at the next read, and what was being done goes on.
"""

from __future__ import annotations

import os
import random
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import cast
from uuid import UUID

from penstock.buffer.config import ConsumerConfig, ProducerConfig, default_manifest_format
from penstock.buffer.descriptors import BatchDescriptor, NewEntry
from penstock.buffer.format.batch import BatchFormat
from penstock.buffer.locations import Names
from penstock.buffer.manifest.cas import READ_TRIES, Change, Versioned, VersionedObject
from penstock.buffer.manifest.enqueuing import Attempts, Enqueuing, OwnWriter
from penstock.buffer.manifest.formats import Formats
from penstock.buffer.manifest.ownership import (
    Owner,
    claim_prefix,
    not_owned,
    owner_id,
    read_id,
    read_owner,
    refuse_deleted,
    write_id,
)
from penstock.buffer.manifest.state import (
    DEFAULT_GROUP,
    Backlog,
    Claim,
    Collecting,
    CycleClock,
    Enqueued,
    Group,
    QueueState,
    Start,
    Transaction,
    Unwritten,
    Waiting,
    Writer,
)
from penstock.buffer.manifest.v1.state import OpenDataCollecting
from penstock.buffer.manifest.v2.segments import SEALING_THREADS, NewSegment, Segments
from penstock.buffer.measures import Measures, label_of
from penstock.buffer.places import check_places
from penstock.core import raise_if_abandoned
from penstock.errors import Fenced, InvalidInput, NotFound, OutcomeUnknown
from penstock.storage import ObjectMeta, ObjectStore, Reserve, url_of

_MAX_KEPT_SECONDS = 10.0

_FORMATS = Formats()


class QueueView:
    """A queue as it was at one moment; with a `group`, as that group sees it. It never changes."""

    def __init__(
        self, store: ObjectStore, path: str, found: Versioned[QueueState], segments: Segments, group: str | None = None
    ) -> None:
        self._store = store
        self._path = path
        self._state = state = found.state
        self._segments = segments
        self.version = found.version
        """The version of the manifest's object; None where there is no manifest."""
        self.last_modified = found.last_modified
        """When the manifest was written, in the store's time; None where there is no manifest, or it is not known."""
        self.format_version = state.format_version
        self.names_groups = state.names_groups
        self.groups = state.groups
        """The readers, in the order they were created. A manifest of version 1 has one."""
        self.epoch = state.epoch if group is None else state.groups[group].epoch
        """The epoch of the group's consumer; without a group, the last that was given."""
        self.first_sequence = state.first_sequence if group is None else state.groups[group].acked_through + 1
        """The first entry that the group has not acked; without a group, the first that is kept."""
        self.next_sequence = state.next_sequence

    @property
    def writers(self) -> Mapping[str, Writer]:
        """The writers that the manifest remembers. Raises `InvalidInput` on version 1."""
        return self._state.writers()

    @property
    def buffer_id(self) -> UUID | None:
        """The buffer's id; None where there is no buffer yet, or version 1 was not written by a Penstock so far.

        Raises `StorageError`: the id of version 1 is in an object of its own.
        """
        if self._state.buffer_id is None:
            return read_id(self._store, self._path)
        return None if self.version is None else self._state.buffer_id

    def entries(self, start: int, stop: int) -> list[BatchDescriptor]:
        """The entries with sequences from `start` up to `stop`, as far as they are there.

        Raises `NotFound` for a segment that is gone, and `CorruptData`.
        """
        return self._state.entries(start, stop, self._segments)

    def backlog(self, most: int) -> Backlog:
        """What waits in the queue, with `most` of its first entries. Raises as `entries` does."""
        return self._state.backlog(most, self._segments)

    def waiting_from(self, start: int) -> Waiting:
        """What waits from a sequence on. Reads nothing."""
        return self._state.waiting_from(start)

    def collecting(self, clock: Callable[[], float], grace: float, marked: datetime | None) -> Collecting:
        """The rules of a cycle of the collector that begins with this view."""
        times = CycleClock(clock, grace, self.last_modified, marked)
        if self.version is None:  # nothing is deleted: every object may be about to be enqueued
            return OpenDataCollecting(self._state, times, self._segments)
        return self._state.collecting(times, self._segments)


class BufferQueue:
    """The queue of one buffer, for one group of readers. Safe to share between threads, but for `enqueue`.

    A manifest keeps the version it has; one that is not there yet gets `manifest_format`, by default that of a
    configuration. `prefix` is where its data objects go. `role` is `producer` or `consumer`, for the metrics; `owner`
    names this process where it takes an epoch. `uptime` is the clock of the entries' deadlines.
    """

    def __init__(
        self,
        store: ObjectStore,
        path: str,
        role: str,
        manifest_format: str | None = None,
        *,
        prefix: str | None = None,
        names: Names | None = None,
        group: str = DEFAULT_GROUP,
        owner: str | None = None,
        formats: Formats = _FORMATS,
        clock: Callable[[], float] = time.time,
        uptime: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], object] = time.sleep,
        jitter: Callable[[], float] = random.random,
        sealing_threads: int = SEALING_THREADS,
    ) -> None:
        label = label_of(store, path)
        self._store = store
        self._path = path
        self._prefix = prefix
        self._names = names or Names(clock)
        self._group = group
        self._owner = f"{socket.gethostname()}:{os.getpid()}" if owner is None else owner
        self._clock = clock
        self._uptime = uptime
        self._measures = Measures(label)
        produces = role == "producer"
        self._reserve_to_create = Reserve.KEEP if produces else Reserve.USE  # of the manifest itself
        self._reserve_for_ids = None if produces else Reserve.USE  # of the small objects with the buffer's id
        self._writer = OwnWriter(self._names)
        where = f"{url_of(store)}/{path}"
        self._object: VersionedObject[QueueState] = VersionedObject(
            store,
            path,
            label,
            role,
            decode=partial(formats.decode, where=where),
            absent=formats.new(manifest_format or default_manifest_format(), self._names.buffer_id(), where),
            write_before=lambda new: self._segments.write(cast("Sequence[NewSegment]", new)),
            seen=self._note,
            sleep=sleep,
            jitter=jitter,
            uptime=uptime,
        )
        self._segments = Segments(store, path, with_retries=self._object.with_retries, threads=sealing_threads)
        self._state = self._object.absent  # as of the last read or write
        self._id: UUID | None = None  # of the buffer, once its manifest was seen and holds one
        self._consumed: Versioned[QueueState] | None = None  # as the consumer saw it last, under its epoch
        self._is_replaced = False

    @classmethod
    def of(
        cls,
        store: ObjectStore,
        config: ProducerConfig | ConsumerConfig,
        role: str,
        *,
        names: Names | None = None,
        group: str = DEFAULT_GROUP,
        clock: Callable[[], float],
        uptime: Callable[[], float] = time.monotonic,
    ) -> BufferQueue:
        """The queue of a config's buffer. Raises `InvalidInput` for a path where the store cannot keep an object."""
        check_places(store, config.data_path_prefix, config.manifest_path)
        return cls(
            store,
            config.manifest_path,
            role,
            config.manifest_format,
            prefix=config.data_path_prefix,
            names=names,
            group=group,
            clock=clock,
            uptime=uptime,
        )

    @property
    def conflict_rate(self) -> float:
        """Percent of the writes that lost a compare-and-set."""
        return self._object.conflict_rate

    @property
    def floor(self) -> int:
        """Nothing new may be named below this time, in milliseconds; as of the last read or write."""
        return self._state.floor

    @property
    def batch_format(self) -> BatchFormat:
        """How data batches are written where the configuration does not say; as of the last read or write."""
        return self._state.batch_format

    @property
    def guards_new_objects(self) -> bool:
        """Whether a floor protects objects that are not enqueued yet; if not, their age does. As of the last read."""
        return self._state.guards_new_objects

    # Which buffer it is.

    def identify(self, create: bool = False) -> UUID | None:
        """The buffer's id, as it is on the store; None where it has none yet. With `create` it gets one.

        Raises `InvalidInput` if the buffer that this queue has seen was deleted since.
        """
        found = self._object.read(tries=READ_TRIES)
        self._check_same_buffer(found)
        return self._created(found) if create else self._id_in(found)

    def own_prefix(self, prefix: str, *, claim: bool) -> bool:
        """Say whether a prefix belongs to this buffer. With `claim`, claim it for the buffer if it has no owner yet.

        Claiming comes before the first data object, and after the manifest. Raises `InvalidInput` where the prefix
        belongs to another buffer, of which nothing may be written or deleted here, or to one that was deleted.
        """
        # In this order: who claims a prefix has written the manifest before, so that it is there to be found now.
        owner = read_owner(self._store, prefix)
        mine = self.identify()
        if owner is None and claim:
            mine = mine or self.identify(create=True)
            owner = claim_prefix(self._store, Owner(cast("UUID", mine), self._path, prefix), self._reserve_for_ids)
        if owner is not None and (owner.id, owner.manifest, owner.prefix) != (mine, self._path, prefix):
            raise not_owned(self._store, owner, mine, self._path, prefix)
        return owner is not None

    def _created(self, found: Versioned[QueueState]) -> UUID | None:
        """The id of the buffer, which is created where there is none."""
        known = self._id_in(found)
        if found.state.buffer_id is None:
            reserve = self._reserve_for_ids
            known = self._object.with_retries(lambda: write_id(self._store, self._path, known, reserve))
        # The manifest last: where it is found to be another's by then, its id is the one that counts.
        found = self._object.update(_create, doing="creating", start=found, reserve=self._reserve_to_create)
        # Without an id another process has created it, in a version that holds none.
        return found.state.buffer_id or known or self.identify(create=True)

    def _id_in(self, found: Versioned[QueueState]) -> UUID | None:
        if found.version is None:
            return None
        found.state.check_paths(self._prefix, self._path)
        return found.state.buffer_id or self._id_beside()

    def _id_beside(self) -> UUID | None:
        """The id that lies beside a manifest without one. Where it was lost, the owner of the data still has it."""
        found = read_id(self._store, self._path)
        return found if found is not None or self._prefix is None else owner_id(self._store, self._prefix, self._path)

    def _check_same_buffer(self, found: Versioned[QueueState]) -> None:
        """Raises `InvalidInput` where this queue's buffer was deleted: what was written for it is not another's."""
        if self._id is None or (found.version is not None and found.state.buffer_id == self._id):
            return
        now = "is gone" if found.version is None else f"is the buffer {found.state.buffer_id} now"
        raise InvalidInput(
            f"{self._object.where} {now}, and was {self._id}: its manifest was deleted. What was to be enqueued is not "
            "known to be; open the buffer again to go on with what is there"
        )

    def _check_before_enqueuing(self, found: Versioned[QueueState]) -> None:
        self._check_same_buffer(found)
        if found.state.buffer_id is None:
            self._refuse_deleted(found)

    def _refuse_deleted(self, found: Versioned[QueueState]) -> None:
        """Raises `InvalidInput` where there is no manifest, and the data says that there was one."""
        if found.version is None and self._prefix is not None:
            refuse_deleted(
                self._store, self._prefix, self._path, lambda: self._object.read(tries=READ_TRIES).version is not None
            )

    # Producers.

    def enqueue(
        self,
        entries: Sequence[NewEntry],
        by: Transaction | None = None,
        *,
        known_at: Sequence[str] = (),
        attempts: Attempts | None = None,
    ) -> Enqueued | Unwritten:
        """Append entries in one write, unless the transaction that they are has happened already.

        Without a transaction the queue's own writer is it. `known_at` are locations by which a version that remembers
        no writers recognises an earlier try. `Unwritten` says which entries the caller has to change first; its
        `attempts` go into the next call.

        Raises `OutcomeUnknown` where the manifest has forgotten the writer meanwhile; `InvalidInput` for a transaction
        before the writer's last, or where the buffer was deleted meanwhile; and what else went wrong: then none of the
        entries is known to be enqueued.
        """
        if not entries:
            return Enqueued(appended=False)
        work = Enqueuing(
            entries,
            by,
            known_at,
            attempts or Attempts(),
            self._writer,
            self._names,
            self._segments,
            self._measures,
            self._now,
            self._uptime,
            self._object.with_retries,
            self._check_before_enqueuing,
        )
        self._object.update(
            work.step,
            work.happened,
            doing=f"enqueuing {len(entries)} in",
            # After a long time this writer may have been forgotten; and a lost reply must not cost the evidence.
            start=self._object.kept(_MAX_KEPT_SECONDS) if self._state.evidence_lasts else None,
            reserve=Reserve.KEEP,  # on a full disk producers wait, and acks, claims and collecting go on
        )
        return work.result

    def has(self, by: Transaction | None, known_at: Sequence[str]) -> bool:
        """Whether a transaction is appended already, as far as the manifest shows. Raises as `enqueue` does."""
        return self._object.read().state.find(by, known_at, self._segments) is not None

    # Consumers.

    def claim(self, start: Start, last_acked: int | None, *, allow_gap: bool) -> QueueView:
        """Take a new epoch for the group, and dequeue what is acked, in one write. Fences the consumer before.

        `start` is for a group that had no consumer yet. Only a success reply grants an epoch.
        """

        def step(found: Versioned[QueueState]) -> Change[QueueState]:
            if found.version is not None:
                found.state.check_paths(self._prefix, self._path)
            self._refuse_deleted(found)
            claim = Claim(self._group, self._owner, self._now(), start, last_acked, allow_gap)
            raise_if_abandoned()  # a task whose opening was cancelled may have opened another by now: do not fence it
            return Change(found.state.claim(claim, self._segments))

        self._consumed = self._object.update(step, doing="taking an epoch in")
        return self._for_group(self._consumed)

    def read(self, epoch: int, *, fresh: bool = False) -> QueueView:
        """Read the queue under an epoch. Raises `Fenced` if it is not the group's any more."""
        before = self._consumed  # first: another thread may read a later state meanwhile
        found = self._object.read(fresh=fresh)
        return self._for_group(self._checked(found, epoch, before))

    def dequeue(self, epoch: int, through: int) -> QueueView:
        """Ack the entries up to a sequence in one write. Raises `Fenced` as `read` does.

        Under its own epoch no other consumer acks: where they are acked, it has happened.
        """

        def step(found: Versioned[QueueState]) -> Change[QueueState] | None:
            self._checked(found, epoch, self._consumed)
            if self._is_replaced:
                raise Fenced(
                    f"{self._object.where} is another buffer now: the manifest of this consumer's was deleted since",
                    epoch=epoch,
                    group=self._group,
                )
            acked = found.state.ack(self._group, through, self._segments)
            return None if acked is None else Change(acked)

        self._consumed = self._object.update(step, doing=f"acking through {through} in", read_tries=1)
        return self._for_group(self._consumed)

    def _checked(
        self, found: Versioned[QueueState], epoch: int, before: Versioned[QueueState] | None
    ) -> Versioned[QueueState]:
        found.state.check_reader(self._group, epoch, self._id)
        if before is not None and found.version != before.version and found.state.is_other_than(before.state):
            # An epoch comes again in a manifest that was deleted and created again; version 1 has no id to tell.
            self._is_replaced = True
        self._consumed = found
        return found

    # Without an epoch.

    def look(self) -> QueueView:
        """Read the queue without an epoch. What has not changed since the last time is not parsed again."""
        return QueueView(self._store, self._path, self._object.read(), self._segments)

    def peek(self) -> QueueView:
        """Read the queue without an epoch, as its group sees it. Raises `InvalidInput` if that is not there."""
        found = self._object.read()
        found.state.check_group(self._group)
        return self._for_group(found)

    def create_group(self, name: str, start: Start) -> None:
        """Create a group that begins somewhere. Raises `InvalidInput` if it is there, or the place is not."""
        self._administer(
            name, lambda state: state.create_group(name, start, self._owner, self._now(), self._segments), create=True
        )

    def reset_group(self, name: str, start: Start) -> None:
        """Let a group begin again somewhere. Fences its consumer."""
        self._administer(name, lambda state: state.reset_group(name, start, self._owner, self._now(), self._segments))

    def drop_group(self, name: str, *, force: bool) -> None:
        """Remove a group, and with it what only it held back. Fences its consumer."""
        self._administer(name, lambda state: state.drop_group(name, self._segments, force=force))

    def drop_writer(self, name: str) -> None:
        """Forget a writer: what it sends again is appended again. Raises `InvalidInput` if it is not there."""
        self._object.update(
            lambda found: Change(self._existing(found).drop_writer(name)),
            lambda found: name not in found.state.writers(),
            doing="changing",
        )

    def close_times(self, rules: Collecting, is_over: Callable[[], bool]) -> None:
        """Close, for the next cycle of a collector, what no later entry may name."""

        def step(found: Versioned[QueueState]) -> Change[QueueState] | None:
            closed = rules.closed_in(found.state, is_over)
            return None if closed is None else Change(closed)

        self._object.update(step, doing="changing")

    def kept(self, rules: Collecting, listed: Mapping[str, ObjectMeta], is_over: Callable[[], bool]) -> set[str]:
        """Which of the objects that a cycle would delete are kept, by the manifest as it is now."""
        return rules.kept(self._object.read(), listed, is_over)

    def _administer(self, name: str, change: Callable[[QueueState], QueueState], *, create: bool = False) -> None:
        """Change one group, once: where a try may have happened and the group was changed since, it says so."""
        epochs: list[int | None] = []  # of the group before each try
        tried: list[Group | None] = []

        def step(found: Versioned[QueueState]) -> Change[QueueState]:
            state = found.state if create else self._existing(found)
            epoch = state.groups[name].epoch if name in state.groups else None
            if epochs and epoch != epochs[0]:
                raise OutcomeUnknown(
                    f"a write to {self._object.where} was not confirmed, and the group {name!r} is another now: it may "
                    "be changed as wanted, and taken over since; look at it with `penstock groups list`"
                )
            changed = change(state)
            epochs.append(epoch)
            tried.append(changed.groups.get(name))
            return Change(changed)

        self._object.update(step, lambda found: found.state.groups.get(name) in tried, doing="changing")

    def _existing(self, found: Versioned[QueueState]) -> QueueState:
        if found.version is None:
            raise NotFound(f"there is no manifest {self._path!r} in {url_of(self._store)}")
        return found.state

    def _now(self) -> int:
        return max(int(self._clock() * 1000), 0)

    def _for_group(self, found: Versioned[QueueState]) -> QueueView:
        return QueueView(self._store, self._path, found, self._segments, self._group)

    def _note(self, found: Versioned[QueueState]) -> None:
        """Note a state that was read or written: for the names of new objects, and for the metrics."""
        state, before = found.state, self._state
        self._names.keep_out_of(state.closed)
        self._state = state
        if self._id is None and found.version is not None:
            self._id = state.buffer_id
        self._measures.queue_length.set(state.next_sequence - state.first_sequence)
        for gone in before.groups.keys() - state.groups.keys():
            self._measures.forget_group(gone)
        if state.names_groups:
            for name, group in state.groups.items():
                self._measures.group_lag(name).set(state.next_sequence - 1 - group.acked_through)


def _create(found: Versioned[QueueState]) -> Change[QueueState] | None:
    return Change(found.state.created()) if found.version is None else None
