"""`BufferQueue`: the queue of a buffer, whichever version its manifest is, now and after an upgrade."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from typing import TypeVar, cast
from uuid import UUID

from penstock.buffer.config import ConsumerConfig, ManifestFormat, ProducerConfig
from penstock.buffer.descriptors import NewEntry
from penstock.buffer.locations import Names
from penstock.buffer.manifest.cas import VersionChanged
from penstock.buffer.manifest.ownership import own_prefix
from penstock.buffer.manifest.state import Enqueued, InTime, QueueView, Rewrite, Start, Transaction
from penstock.buffer.manifest.v1.queue import OpenDataQueue, OpenDataView, Try
from penstock.buffer.manifest.v2.head import DEFAULT_GROUP
from penstock.buffer.manifest.v2.queue import NativeQueue, NativeView
from penstock.buffer.measures import label_of
from penstock.buffer.places import check_places
from penstock.storage import ObjectStore

Unless = Callable[[OpenDataView], bool]

T = TypeVar("T")


class BufferQueue:
    """The queue of one buffer. A manifest keeps the version it has; one that is not there yet gets `manifest_format`.

    `prefix` is where its data objects go; on version 1 it has to be one that OpenData's crate leaves as it is.

    It takes the manifest for what it was the last time, and finds out when it reads it: so an upgrade is met on the
    next read, at the latest after a compare-and-set that lost, and what was being done goes on with version 2.
    """

    def __init__(
        self,
        store: ObjectStore,
        path: str,
        role: str,
        manifest_format: str = ManifestFormat.NATIVE,
        *,
        prefix: str | None = None,
        names: Names | None = None,
        group: str = DEFAULT_GROUP,
        clock: Callable[[], float] = time.time,
        sleep: Callable[[float], object] = time.sleep,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self._store = store
        self._path = path
        label = label_of(store, path)
        self._opendata = OpenDataQueue(store, path, label, role, prefix=prefix, group=group, sleep=sleep, jitter=jitter)
        self._native = NativeQueue(
            self._opendata.manifest_object, names or Names(clock), group, prefix=prefix, clock=clock
        )
        self._is_native = manifest_format == ManifestFormat.NATIVE

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
        )

    @property
    def conflict_rate(self) -> float:
        """Percent of the writes that lost a compare-and-set."""
        return self._current.conflict_rate

    @property
    def floor(self) -> int:
        """Nothing new may be named below this time, in milliseconds; as of the last read or write."""
        return self._native.floor if self._is_native else 0

    @property
    def is_native(self) -> bool:
        """Whether the manifest is version 2, as of the last read or write."""
        return self._is_native

    @property
    def native(self) -> NativeQueue | None:
        """The queue if the manifest is version 2, as of the last read or write."""
        return self._native if self._is_native else None

    def identify(self, create: bool = False) -> UUID | None:
        """The buffer's id, as it is on the store; None where it has none yet. With `create` it gets one."""
        return self._on_current(lambda queue: queue.identify(create))

    def own_prefix(self, prefix: str, *, claim: bool) -> bool:
        """Say whether a prefix belongs to this buffer. With `claim`, claim it for the buffer if it has no owner yet.

        Claiming comes before the first data object, and after the manifest. Raises `InvalidInput` where the prefix
        belongs to another buffer, or to one that was deleted.
        """
        reserve = self._opendata.manifest_object.reserve_for_ids
        return own_prefix(self._store, prefix, self._path, self.identify, claim=claim, reserve=reserve)

    def enqueue(
        self,
        entries: Sequence[NewEntry],
        in_time: InTime,
        rewrite: Rewrite,
        by: Transaction | None = None,
        unless: Unless | None = None,
    ) -> Enqueued:
        """Append entries in one write, unless they are there already.

        What says so is the transaction on version 2, and `unless` on version 1, which does not remember writers.
        """
        doubts: Sequence[Try] = ()
        while True:
            is_native = self._is_native
            try:
                if not is_native:
                    places = self._opendata.enqueue(entries, in_time, unless)
                    return Enqueued(bool(places), min(places.values(), default=None), places)
                if doubts:
                    # What version 1 was in doubt about: the upgrade has kept the sequences.
                    places_then = self._settled(doubts)
                    if places_then is not None:
                        return Enqueued(True, min(places_then.values()), places_then)
                    doubts = ()
                return self._native.enqueue(entries, in_time, rewrite, by)
            except VersionChanged as change:
                doubts = cast("Sequence[Try]", change.doubts)
                self._is_native = not is_native

    def _settled(self, doubts: Sequence[Try]) -> dict[str, int] | None:
        places, _ = self._opendata.manifest_object.patiently(lambda: self._opendata.settle(doubts, self._native.look()))
        return places

    def claim(self, start: Start, last_acked: int | None, *, allow_gap: bool) -> QueueView:
        """Take a new epoch, fencing whoever had one, and dequeue what is acked; both in one write."""

        def claim(queue: OpenDataQueue | NativeQueue) -> QueueView:
            return queue.claim(last_acked, allow_gap=allow_gap, start=start)

        return self._on_current(claim)

    def read(self, epoch: int, *, fresh: bool = False) -> QueueView:
        """Read the queue under an epoch. Raises `Fenced` if it is not the queue's any more."""
        return self._on_current(lambda queue: queue.read(epoch, fresh=fresh))

    def dequeue(self, epoch: int, through: int) -> QueueView:
        """Ack the entries up to a sequence in one write. Raises `Fenced` as `read` does."""
        return self._on_current(lambda queue: queue.dequeue(epoch, through))

    def look(self) -> QueueView:
        """Read the queue without an epoch."""
        return self._on_current(lambda queue: queue.look())

    def peek(self) -> QueueView:
        """Read the queue without an epoch, as its group sees it. Raises `InvalidInput` if that is not there."""
        view = self.look()
        if isinstance(view, NativeView):
            return self._native.seen_by_group(view)
        self._opendata.check_group()
        return view

    @property
    def _current(self) -> OpenDataQueue | NativeQueue:
        return self._native if self._is_native else self._opendata

    def _on_current(self, call: Callable[[OpenDataQueue | NativeQueue], T]) -> T:
        while True:
            is_native = self._is_native
            try:
                return call(self._native if is_native else self._opendata)
            except VersionChanged:
                self._is_native = not is_native  # the other one than was asked: threads may find out at the same time
