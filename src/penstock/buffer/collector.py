"""`GarbageCollector`: deletes data objects that nobody refers to, and that nobody can refer to any more.

Why its rule is safe is in `docs/design/buffer.md`.
"""

from __future__ import annotations

import itertools
import logging
import os
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta

from penstock.buffer.config import ConsumerConfig
from penstock.buffer.locations import check_owner, is_data_path
from penstock.buffer.measures import Measures, label_of
from penstock.buffer.opendata_queue import OpenDataQueue
from penstock.buffer.queue_manifest import QueueManifest
from penstock.errors import StorageError
from penstock.storage import DeleteResult, ObjectMeta, ObjectStore, open_store, url_of
from penstock.storage.checks import check_config

_DEFAULTS = ConsumerConfig()
_AT_ONCE = 500

_log = logging.getLogger(__name__)
_numbers = itertools.count(1)


@dataclass(frozen=True, slots=True)
class GcReport:
    """What a cycle did with the data objects it found: how many it deleted, could not delete, and kept."""

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

    def __init__(self, where: str | os.PathLike[str] | ObjectStore, config: ConsumerConfig = _DEFAULTS) -> None:
        check_config(config, ConsumerConfig)
        self._store = open_store(where)
        self._config = config
        label = label_of(self._store, config.manifest_path)
        self._measures = Measures(label)
        self._queue: QueueManifest = OpenDataQueue(self._store, config.manifest_path, label, "consumer")
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
        unreferenced = self._unreferenced(found)
        # Before the first delete the prefix is claimed, so that from here on nobody else's data can be in it.
        deleted = failed = 0
        if unreferenced and check_owner(self._store, prefix, manifest, claim=True):
            for some in _in_pieces(unreferenced):
                if self._stopping.is_set():
                    break
                gone = self._delete(some)
                deleted, failed = deleted + gone, failed + len(some) - gone
        self._measures.gc_duration.observe(time.perf_counter() - started)
        return GcReport(deleted, failed, len(found) - deleted - failed)

    def _unreferenced(self, found: list[ObjectMeta]) -> list[str]:
        view = self._queue.look()
        if view.last_modified is None:
            return []  # no manifest: whatever is there may be about to be enqueued
        kept = {entry.location for entry in view.entries(view.first_sequence, view.next_sequence)}
        written_before = view.last_modified - timedelta(seconds=self._config.gc_grace_period)
        return [meta.path for meta in found if meta.path not in kept and meta.last_modified <= written_before]

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


def _in_pieces(paths: list[str]) -> Iterator[list[str]]:
    for start in range(0, len(paths), _AT_ONCE):
        yield paths[start : start + _AT_ONCE]
