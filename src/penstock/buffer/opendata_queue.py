"""The queue behind a manifest of version 1: one object, changed by compare-and-set.

What decides after a write that did not succeed is in `docs/design/buffer.md`: for an enqueue the locations, for a
dequeue that the entries are gone, for an epoch nothing but a success reply.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import Enum, auto

from penstock.buffer.descriptors import BatchDescriptor, NewEntry
from penstock.buffer.measures import Measures, WriteCounts
from penstock.buffer.opendata_manifest import OpenDataManifest, next_epoch
from penstock.buffer.queue_manifest import InTime
from penstock.errors import AlreadyExists, Conflict, Fenced, InvalidInput, NotFound, OutcomeUnknown, StorageError
from penstock.storage import ObjectStore, url_of

_FIRST_PAUSE = 0.005
_LONGEST_PAUSE = 0.5
_READ_TRIES = 5
_UNKNOWN_TRIES = 30

_log = logging.getLogger(__name__)


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
class _Try:
    """A write that did not succeed: on what it was based, and what it would have put where."""

    base: str | None
    first: int
    locations: tuple[str, ...]

    def sequences(self) -> dict[str, int]:
        return {location: self.first + place for place, location in enumerate(self.locations)}

    def judge(self, found: OpenDataView) -> _Verdict:
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
    """The queue of one buffer. Safe to share between threads; `role` is `producer` or `consumer`, for the metrics."""

    def __init__(
        self,
        store: ObjectStore,
        path: str,
        label: str,
        role: str,
        *,
        sleep: Callable[[float], object] = time.sleep,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self._store = store
        self._path = path
        self._measures = Measures(label)
        self._counts = WriteCounts(label, role)
        self._sleep = sleep
        self._jitter = jitter
        self._latest: OpenDataView | None = None

    @property
    def conflict_rate(self) -> float:
        """Percent of the writes that lost a compare-and-set."""
        return self._counts.conflict_rate

    def enqueue(
        self, entries: Sequence[NewEntry], in_time: InTime, unless: Callable[[OpenDataView], bool] | None = None
    ) -> dict[str, int]:
        """Append entries in one write, and return the sequence of each location.

        `unless` is asked about each view that a write would be based on; where it says yes, nothing is written.
        """
        doubts: list[_Try] = []
        pauses = self._pauses()
        while True:
            found = self._read_patiently()
            done, doubts = self._settle(doubts, found)
            if done is not None:
                return done
            if unless is not None and unless(found):
                return {}
            entries = in_time(entries)
            changed = found.manifest.append([(entry.location, entry.metadata) for entry in entries])
            attempt = _Try(found.version, found.next_sequence, tuple(entry.location for entry in entries))
            tried, entries = entries, in_time(entries)
            if not entries:
                return {}
            if len(entries) < len(tried):
                continue
            try:
                self._write(found, changed)
            except (Conflict, AlreadyExists, OutcomeUnknown) as error:
                _log.info("enqueuing %d in %s: %s; reading again", len(entries), self._where, error)
            else:
                return attempt.sequences()
            # At once, and only then the pause: the longer one waits, the more of the evidence has been dequeued.
            done, doubts = self._settle([*doubts, attempt], self._read_patiently())
            if done is not None:
                return done
            next(pauses)

    def claim(self, last_acked: int | None, *, allow_gap: bool) -> OpenDataView:
        """Take a new epoch, and dequeue what is acked, in one write. Only a success reply grants an epoch."""
        pauses = self._pauses()
        unknown = 0
        while True:
            found = self._read_patiently()
            changed = found.manifest
            if last_acked is not None:
                self._check_resumable(found, last_acked, allow_gap=allow_gap)
                changed = changed.remove_through(last_acked)
            try:
                return self._write(found, changed.with_epoch(next_epoch(found.epoch)))
            except (Conflict, AlreadyExists, OutcomeUnknown) as error:
                unknown = self._count_unknown(unknown, error)
                _log.info("taking an epoch in %s: %s; taking the next one", self._where, error)
                next(pauses)

    def read(self, epoch: int, *, fresh: bool = False) -> OpenDataView:
        """Read the queue under an epoch."""
        if fresh:
            self._latest = None
        found = self.look()
        self._check_epoch(found, epoch)
        return found

    def dequeue(self, epoch: int, through: int) -> OpenDataView:
        """Remove the entries up to a sequence in one write. Under one's own epoch nobody else removes any."""
        pauses = self._pauses()
        unknown = 0
        while True:
            found = self.read(epoch)
            if through < found.first_sequence or found.first_sequence == found.next_sequence:
                return found
            try:
                return self._write(found, found.manifest.remove_through(through))
            except (Conflict, AlreadyExists, OutcomeUnknown) as error:
                unknown = self._count_unknown(unknown, error)
                _log.info("dequeuing through %d in %s: %s; reading again", through, self._where, error)
                next(pauses)

    def look(self) -> OpenDataView:
        """Read the queue without an epoch. What has not changed since the last time is not parsed again."""
        latest = self._latest
        try:
            found = self._store.get(self._path)
        except NotFound:
            view = OpenDataView(OpenDataManifest.empty())
        else:
            if latest is not None and latest.version == found.version:
                manifest = latest.manifest
            else:
                manifest = OpenDataManifest(found.data)
            view = OpenDataView(manifest, found.version, found.last_modified)
        self._remember(view)
        return view

    @property
    def _where(self) -> str:
        return f"{url_of(self._store)}/{self._path}"

    def _settle(self, doubts: list[_Try], found: OpenDataView) -> tuple[dict[str, int] | None, list[_Try]]:
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

    def _check_resumable(self, found: OpenDataView, last_acked: int, *, allow_gap: bool) -> None:
        if last_acked >= found.next_sequence:
            problem = f"it was never enqueued: the next sequence of {self._where} is {found.next_sequence}"
        elif found.first_sequence > last_acked + 1:
            problem = f"the first entry that {self._where} can still give is {found.first_sequence}"
        else:
            return
        if not allow_gap:
            raise InvalidInput(
                f"last_acked_sequence {last_acked} would skip entries silently: {problem}; "
                "give allow_gap=True to go on all the same"
            )
        _log.warning("going on from last_acked_sequence %d: %s", last_acked, problem)

    def _check_epoch(self, found: OpenDataView, epoch: int) -> None:
        if found.epoch != epoch:
            raise Fenced(
                f"a newer consumer has taken over {self._where}: its epoch is {found.epoch}, and this one's {epoch} "
                "(or somebody has deleted or replaced the manifest)"
            )

    def _write(self, found: OpenDataView, changed: OpenDataManifest) -> OpenDataView:
        self._counts.tried()
        try:
            if found.version is None:
                version = self._store.put_if_absent(self._path, changed.data)
            else:
                version = self._store.put_if_match(self._path, changed.data, found.version)
        except (Conflict, AlreadyExists):
            self._counts.lost()
            raise
        view = OpenDataView(changed, version)
        self._remember(view)
        return view

    def _remember(self, view: OpenDataView) -> None:
        self._latest = view if view.version is not None else None
        self._measures.queue_length.set(view.manifest.count)

    def _read_patiently(self) -> OpenDataView:
        """Read, and read again a few times if the store fails: whoever calls this has work behind it that would go."""
        pauses = self._pauses()
        for left in reversed(range(_READ_TRIES)):
            try:
                return self.look()
            except StorageError as error:
                if not left:
                    raise
                _log.warning("reading %s: %s; trying again", self._where, error)
                next(pauses)
        raise AssertionError

    def _count_unknown(self, unknown: int, error: StorageError) -> int:
        """Losing to others is the way of the house; hearing nothing again and again is for the caller to know."""
        if not isinstance(error, OutcomeUnknown):
            return 0
        if unknown + 1 >= _UNKNOWN_TRIES:
            raise error
        return unknown + 1

    def _pauses(self) -> Iterator[None]:
        """Wait a random while, up to twice as long each time: those who met once do not meet again."""
        longest = _FIRST_PAUSE
        while True:
            self._sleep(longest * self._jitter())
            longest = min(longest * 2, _LONGEST_PAUSE)
            yield
