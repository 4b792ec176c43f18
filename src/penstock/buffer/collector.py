"""`GarbageCollector`: deletes objects that nobody refers to, and that nobody can refer to any more.

Why its rules are safe is in `docs/design/buffer.md` for version 1, and in `docs/design/native-manifest.md` for 2.
"""

from __future__ import annotations

import itertools
import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import timedelta

from penstock.buffer.buffer_queue import BufferQueue
from penstock.buffer.config import ConsumerConfig
from penstock.buffer.locations import check_owner, is_data_path, location_time
from penstock.buffer.measures import Measures, label_of
from penstock.buffer.native_head import Head
from penstock.buffer.native_queue import NativeQueue, NativeView
from penstock.buffer.queue_manifest import QueueView
from penstock.buffer.segments import folder_of, segment_time
from penstock.errors import StorageError
from penstock.storage import DeleteResult, ObjectMeta, ObjectStore, open_store, url_of
from penstock.storage.checks import check_config

_DEFAULTS = ConsumerConfig()
_AT_ONCE = 500
_FAR_AHEAD = 86_400_000  # a day, in milliseconds

_log = logging.getLogger(__name__)
_numbers = itertools.count(1)


@dataclass(frozen=True, slots=True)
class GcReport:
    """What a cycle did with the data objects and segments it found: how many it deleted, could not delete, and kept."""

    deleted: int
    failed: int
    kept: int


class GarbageCollector:
    """Deletes what is dequeued or was never enqueued. It takes no epoch, and any number of them may run.

    A `ConsumerConfig` says where, and with which grace period; its `enqueue_deadline` must be the longest that any
    producer of the buffer uses.

    >>> GarbageCollector("memory://doctest-collector").collect_once()
    GcReport(deleted=0, failed=0, kept=0)
    """

    def __init__(
        self,
        where: str | os.PathLike[str] | ObjectStore,
        config: ConsumerConfig = _DEFAULTS,
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        check_config(config, ConsumerConfig)
        self._store = open_store(where)
        self._config = config
        self._clock = clock
        self._measures = Measures(label_of(self._store, config.manifest_path))
        self._queue = BufferQueue(self._store, config.manifest_path, "consumer", config.manifest_format, clock=clock)
        self._stopping = threading.Event()

    def __repr__(self) -> str:
        return f"GarbageCollector({url_of(self._store)})"

    def collect_once(self) -> GcReport:
        """Run one cycle. A delete that fails is counted, logged, and tried again by the next cycle.

        Raises `InvalidInput` if the prefix belongs to another manifest, `StorageError` or `CorruptData` if the objects
        cannot be listed or the manifest not be read; in all of these cases nothing is deleted.
        """
        started = time.perf_counter()
        prefix, manifest = self._config.data_path_prefix, self._config.manifest_path
        check_owner(self._store, prefix, manifest, claim=False)
        # The listing first: an object that comes after it is not in it, however long the reading of the manifest takes.
        found = [meta for meta in self._store.list_objects(prefix) if is_data_path(meta.path, prefix)]
        view = self._queue.look()
        if view.version is None:
            report = GcReport(0, 0, len(found))  # no manifest: whatever is there may be about to be enqueued
        elif isinstance(view, NativeView) and self._queue.native is not None:
            report = self._collect_below_floor(self._queue.native, view, found)
        else:
            report = self._collect(self._unreferenced(view, found), len(found))
        self._measures.gc_duration.observe(time.perf_counter() - started)
        return report

    def _collect(self, paths: list[str], found: int) -> GcReport:
        deleted = failed = 0
        config = self._config
        # Before the first delete the prefix is claimed, so that from here on nobody else's data can be in it.
        if paths and check_owner(self._store, config.data_path_prefix, config.manifest_path, claim=True):
            for some in _in_pieces(paths):
                if self._stopping.is_set():
                    break
                gone = self._delete(some)
                deleted, failed = deleted + gone, failed + len(some) - gone
        return GcReport(deleted, failed, found - deleted - failed)

    # Version 1: what no manifest names, and was written long before the manifest.

    def _unreferenced(self, view: QueueView, found: list[ObjectMeta]) -> list[str]:
        if view.last_modified is None:
            return []
        kept = {entry.location for entry in view.entries(view.first_sequence, view.next_sequence)}
        written_before = view.last_modified - timedelta(seconds=self._config.gc_grace_period)
        return [meta.path for meta in found if meta.path not in kept and meta.last_modified <= written_before]

    # Version 2: what is below the floor, once that has been there for a grace period.

    def _collect_below_floor(self, queue: NativeQueue, view: NativeView, data: list[ObjectMeta]) -> GcReport:
        head = view.head
        now, grace = self._now(view, data), int(self._config.gc_grace_period * 1000)
        times = {meta.path: location_time(meta.path) for meta in data}
        folder = folder_of(self._config.manifest_path)
        for meta in self._store.list_objects(folder):
            name = meta.path.rpartition("/")[2]
            if meta.path == f"{folder}/{name}" and (time_of := segment_time(name)) is not None:
                times[meta.path] = time_of
        self._warn_of_the_future(times.values(), now + grace)
        if head.floor and now < head.floor_set_at + grace:
            return GcReport(0, 0, len(times))
        below = [path for path, at in times.items() if at is not None and at < head.floor]
        report = self._collect(below, len(times))
        # Only now, when the one before is carried out: else collectors that run often would put it off for ever.
        left = [at for path, at in times.items() if at is not None and at >= head.floor]
        if left and min(left) < floor_for(head, now - grace):
            queue.raise_floor(lambda latest: floor_for(latest, now - grace), lambda: max(now, self._now(view, data)))
        return report

    def _now(self, view: NativeView, data: list[ObjectMeta]) -> int:
        """This host's time in milliseconds, but for a clock that is far ahead of the store's last sign of life.

        A floor of its making would have everybody name what they write after it, and put off all collecting till then.
        """
        signs = [meta.last_modified for meta in data]
        signs += [] if view.last_modified is None else [view.last_modified]
        newest = max((int(sign.timestamp() * 1000) for sign in signs), default=0)
        return min(int(self._clock() * 1000), newest + _FAR_AHEAD)

    def _warn_of_the_future(self, times: Iterable[int | None], latest: int) -> None:
        ahead = [at for at in times if at is not None and at > latest]
        if ahead:
            _log.warning(
                "%d objects of %s are dated up to %.0f s ahead of this clock: some host's clock is wrong; they are "
                "kept until that time has come",
                len(ahead),
                url_of(self._store),
                (max(ahead) - latest) / 1000 + self._config.gc_grace_period,
            )

    def _delete(self, paths: list[str]) -> int:
        try:
            results = self._store.delete(paths)
        except StorageError as error:
            results = [DeleteResult(path, error) for path in paths]
        for result in results:
            if result.error is not None:
                _log.warning(
                    "collecting %s from %s: %s; trying again later", result.path, url_of(self._store), result.error
                )
        gone = sum(result.ok for result in results)
        self._measures.gc_files_deleted.inc(gone)
        self._measures.gc_files_failed.inc(len(results) - gone)
        return gone


class CollectorThread:
    """Runs a collector again and again. A cycle that fails is logged, and does not end it."""

    def __init__(self, collector: GarbageCollector, interval: float) -> None:
        self._collector = collector
        self._interval = interval
        self._thread = threading.Thread(target=self._run, name=f"penstock-collector-{next(_numbers)}", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop it, and wait until it has stopped; a cycle under way ends at its next step."""
        self._collector._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._collector._stopping.wait(self._interval):
            try:
                report = self._collector.collect_once()
            except BaseException:  # noqa: BLE001  nothing that a store of a user's may raise ends the thread
                _log.exception("a cycle of %r failed; the next one comes in %s s", self._collector, self._interval)
            else:
                _log.debug("%r: %s", self._collector, report)


def floor_for(head: Head, latest: int) -> int:
    """The highest floor that a head can have: below everything that it names, and not later than `latest`."""
    times = [reference.oldest for reference in head.segments]
    times += [at for entry in head.tail if (at := location_time(entry.location)) is not None]
    return max(min([latest, *times]), 0)


def _in_pieces(paths: list[str]) -> Iterator[list[str]]:
    for start in range(0, len(paths), _AT_ONCE):
        yield paths[start : start + _AT_ONCE]
