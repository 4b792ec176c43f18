"""The queue behind a manifest of version 1: one object, changed by compare-and-set.

What decides after a write that did not succeed is in `docs/design/buffer.md`: for an enqueue the locations, for a
dequeue that the entries are gone, for an epoch nothing but a success reply.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import Enum, auto
from uuid import UUID

from penstock.buffer.config import check_opendata_places
from penstock.buffer.descriptors import BatchDescriptor, NewEntry
from penstock.buffer.manifest.cas import LOST, ManifestObject, Patience, VersionChanged
from penstock.buffer.manifest.ownership import owner_id, refuse_deleted
from penstock.buffer.manifest.start import beginning, check_resumable
from penstock.buffer.manifest.state import InTime, QueueView, Start
from penstock.buffer.manifest.v1.buffer_id import read_id, write_id
from penstock.buffer.manifest.v1.codec import OpenDataManifest, next_epoch
from penstock.buffer.manifest.v2.head import DEFAULT_GROUP, version_of
from penstock.buffer.manifest.v2.head import VERSION as NATIVE
from penstock.buffer.measures import Measures
from penstock.core import get_logger
from penstock.errors import Fenced, InvalidInput
from penstock.storage import ObjectStore, Reserve

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class OpenDataView:
    """A manifest of version 1 with the version of its object, which is None while there is no object."""

    manifest: OpenDataManifest
    version: str | None = None
    last_modified: datetime | None = None

    @property
    def epoch(self) -> int:
        """Whose turn it is to consume."""
        return self.manifest.epoch

    @property
    def first_sequence(self) -> int:
        """The sequence of the oldest entry; the next one to be given where there is none."""
        return self.manifest.first_sequence

    @property
    def next_sequence(self) -> int:
        """The sequence that the next entry will get."""
        return self.manifest.next_sequence

    def entries(self, start: int, stop: int) -> list[BatchDescriptor]:
        """The entries with sequences from `start` up to `stop`, as far as they are there."""
        return self.manifest.entries(start, stop)


class _Verdict(Enum):
    HAPPENED = auto()
    DID_NOT = auto()
    MAY_YET = auto()
    NO_EVIDENCE = auto()


@dataclass(frozen=True, slots=True)
class Try:
    """A write that did not succeed: on what it was based, and what it would have put where."""

    base: str | None
    first: int
    locations: tuple[str, ...]

    def sequences(self) -> dict[str, int]:
        """Where each location would be."""
        return {location: self.first + place for place, location in enumerate(self.locations)}

    def judge(self, found: QueueView) -> _Verdict:
        """Say what became of it. It put all of its entries into their places, or none.

        So it did not happen where one of its places is another's, or was never given. (All of them, and not any: a
        shorter try of the same entries, after some were too late, begins with the same locations.)
        """
        end = self.first + len(self.locations)
        if end > found.next_sequence:
            return _Verdict.MAY_YET if found.version == self.base else _Verdict.DID_NOT
        kept = found.entries(self.first, end)
        if not kept:
            return _Verdict.NO_EVIDENCE
        is_mine = all(entry.location == self.locations[entry.sequence - self.first] for entry in kept)
        return _Verdict.HAPPENED if is_mine else _Verdict.DID_NOT


class OpenDataQueue:
    """The queue of one buffer. Safe to share between threads; `role` is `producer` or `consumer`, for the metrics.

    Every method raises `VersionChanged` when it finds a manifest of version 2.
    """

    def __init__(
        self,
        store: ObjectStore,
        path: str,
        label: str,
        role: str,
        *,
        prefix: str | None = None,
        group: str = DEFAULT_GROUP,
        sleep: Callable[[float], object] = time.sleep,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self.manifest_object = self._object = ManifestObject(store, path, label, role, sleep=sleep, jitter=jitter)
        self._measures = Measures(label)
        self._prefix = prefix
        self._group = group
        self._latest: OpenDataView | None = None
        self._consumed: OpenDataView | None = None  # as the consumer saw it last, under its epoch
        # An epoch comes again in a manifest that was deleted and created again, and version 1 has no id in it.
        self._is_replaced = False

    @property
    def conflict_rate(self) -> float:
        """Percent of the writes that lost a compare-and-set."""
        return self._object.conflict_rate

    def identify(self, create: bool) -> UUID | None:
        """The buffer's id, which lies beside the manifest; None where either is missing. With `create` it is written.

        The manifest last: where it is found to be version 2 by then, the id is that of version 2.
        """
        found = self._read_patiently()
        self._check_places(found)
        store, path = self._object.store, self._object.path
        known = None if found.version is None else self._known_id()
        if not create:
            return known
        own_id = self._object.patiently(lambda: write_id(store, path, known, self._object.reserve_for_ids))
        pauses, patience = self._pauses(), Patience()
        while found.version is None:
            try:
                found = self._write(found, found.manifest, self._object.reserve_to_create)
            except LOST as error:
                patience.lost(error)
                _log.info("creating %s: %s; reading it again", self._where, error)
                next(pauses)
                found = self._read_patiently()
        return own_id

    def _known_id(self) -> UUID | None:
        """The id beside the manifest. Where it was lost, the owner of the data still has it."""
        store, path = self._object.store, self._object.path
        found = read_id(store, path)
        return found if found is not None or self._prefix is None else owner_id(store, self._prefix, path)

    def enqueue(
        self, entries: Sequence[NewEntry], in_time: InTime, unless: Callable[[OpenDataView], bool] | None = None
    ) -> dict[str, int]:
        """Append entries in one write, and return the sequence of each location.

        `unless` is asked about each view that a write would be based on; where it says yes, nothing is written.
        """
        doubts: list[Try] = []
        pauses = self._pauses()
        try:
            while True:
                found = self._read_patiently()
                self._refuse_deleted(found)
                done, doubts = self.settle(doubts, found)
                if done is not None:
                    return done
                if unless is not None and unless(found):
                    return {}
                entries = in_time(entries)
                changed = found.manifest.append([(entry.location, entry.metadata) for entry in entries])
                attempt = Try(found.version, found.next_sequence, tuple(entry.location for entry in entries))
                tried, entries = entries, in_time(entries)
                if not entries:
                    return {}
                if len(entries) < len(tried):
                    continue
                try:
                    self._write(found, changed, Reserve.KEEP)
                except LOST as error:
                    _log.info("enqueuing %d in %s: %s; reading again", len(entries), self._where, error)
                else:
                    return attempt.sequences()
                doubts = [*doubts, attempt]
                # At once, and only then the pause: the longer one waits, the more of the evidence has been dequeued.
                done, doubts = self.settle(doubts, self._read_patiently())
                if done is not None:
                    return done
                next(pauses)
        except VersionChanged as change:
            raise VersionChanged(tuple(doubts)) from change

    def claim(self, last_acked: int | None, *, allow_gap: bool, start: Start = "earliest") -> OpenDataView:
        """Take a new epoch, and dequeue what is acked, in one write. Only a success reply grants an epoch.

        Raises `InvalidInput` for a group: this version knows one reader, who is new until the first epoch is taken.
        """
        pauses, patience = self._pauses(), Patience()
        while True:
            found = self._read_patiently()
            self._check_places(found)
            self._refuse_deleted(found)
            self.check_group()
            changed = found.manifest
            if not found.epoch:
                begin = beginning(start, found.first_sequence, found.next_sequence, self._where)
                changed = changed.remove_through(begin - 1)
            if last_acked is not None:
                check_resumable(
                    changed.first_sequence, changed.next_sequence, last_acked, self._where, allow_gap=allow_gap
                )
                changed = changed.remove_through(last_acked)
            try:
                view = self._write(found, changed.with_epoch(next_epoch(found.epoch)))
            except LOST as error:
                patience.lost(error)
                _log.info("taking an epoch in %s: %s; taking the next one", self._where, error)
                next(pauses)
            else:
                self._consumed = view
                return view

    def _check_places(self, found: OpenDataView) -> None:
        """Raises `InvalidInput` for paths that OpenData's crate would look for elsewhere."""
        if found.version is not None:  # what is not there yet may be another's to make, as version 2
            check_opendata_places(self._prefix, self._object.path)

    def _refuse_deleted(self, found: OpenDataView) -> None:
        if found.version is None and self._prefix is not None:
            refuse_deleted(self._object.store, self._prefix, self._object.path, self._is_there)

    def _is_there(self) -> bool:
        return self._read_patiently().version is not None

    def check_group(self) -> None:
        """Raises `InvalidInput` for a group but `default`."""
        if self._group != DEFAULT_GROUP:
            raise InvalidInput(
                f"group must be {DEFAULT_GROUP!r} on {self._where}, which is a manifest of version 1, not "
                f"{self._group!r}; `penstock manifest upgrade` makes it version 2"
            )

    def read(self, epoch: int, *, fresh: bool = False) -> OpenDataView:
        """Read the queue under an epoch."""
        if fresh:
            self._latest = None
        before = self._consumed  # first: another thread may read a later state meanwhile
        found = self.look()
        self._check_epoch(found, epoch)
        if before is not None and found.version != before.version and found.manifest.is_other_than(before.manifest):
            self._is_replaced = True
        self._consumed = found
        return found

    def dequeue(self, epoch: int, through: int) -> OpenDataView:
        """Remove the entries up to a sequence in one write. Under one's own epoch nobody else removes any."""
        pauses, patience = self._pauses(), Patience()
        while True:
            found = self.read(epoch)
            if self._is_replaced:
                raise Fenced(f"{self._where} is another buffer now: the manifest of this consumer's was deleted since")
            if through < found.first_sequence or found.first_sequence == found.next_sequence:
                return found
            try:
                view = self._write(found, found.manifest.remove_through(through))
            except LOST as error:
                patience.lost(error)
                _log.info("dequeuing through %d in %s: %s; reading again", through, self._where, error)
                next(pauses)
            else:
                self._consumed = view
                return view

    def look(self) -> OpenDataView:
        """Read the queue without an epoch. What has not changed since the last time is not parsed again."""
        latest = self._latest
        found = self._object.get()
        if found is None:
            view = OpenDataView(OpenDataManifest.empty())
        elif latest is not None and latest.version == found.version:
            view = OpenDataView(latest.manifest, found.version, found.last_modified)
        elif version_of(found.data) == NATIVE:
            raise VersionChanged
        else:
            view = OpenDataView(self._object.decoded(OpenDataManifest, found.data), found.version, found.last_modified)
        self._remember(view)
        return view

    @property
    def _where(self) -> str:
        return self._object.where

    def settle(self, doubts: Sequence[Try], found: QueueView) -> tuple[dict[str, int] | None, list[Try]]:
        """Judge the tries before by what is there now: what happened, if it did, and what is still open."""
        still, lost = [], dict[str | None, int]()
        for attempt in doubts:
            verdict = attempt.judge(found)
            if verdict is _Verdict.HAPPENED:
                return attempt.sequences(), []
            if verdict is _Verdict.MAY_YET:
                still.append(attempt)
            if verdict is _Verdict.NO_EVIDENCE:
                # Of several tries based on one version at most one happened.
                lost[attempt.base] = max(lost.get(attempt.base, 0), len(attempt.locations))
        for entries in lost.values():
            _log.warning(
                "enqueuing %d again in %s: what the try before would have written is dequeued already, if it was; "
                "a manifest of version 1 cannot tell",
                entries,
                self._where,
            )
            self._measures.enqueue_in_doubt.inc(entries)
        return None, still

    def _check_epoch(self, found: OpenDataView, epoch: int) -> None:
        if found.epoch != epoch:
            raise Fenced(
                f"a newer consumer has taken over {self._where}: its epoch is {found.epoch}, and this one's {epoch} "
                "(or somebody has deleted or replaced the manifest)"
            )

    def _write(self, found: OpenDataView, changed: OpenDataManifest, reserve: Reserve = Reserve.USE) -> OpenDataView:
        view = OpenDataView(changed, self._object.replace(found.version, changed.data, reserve))
        self._remember(view)
        return view

    def _remember(self, view: OpenDataView) -> None:
        self._latest = view if view.version is not None else None
        self._measures.queue_length.set(view.manifest.count)

    def _read_patiently(self) -> OpenDataView:
        return self._object.patiently(self.look)

    def _pauses(self) -> Iterator[None]:
        return self._object.pauses()
