"""One cycle of the collector: lists objects, compares candidates with the manifest in chunks, and deletes them.

So a cycle keeps a bounded number of paths in memory, however many objects there are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from penstock.buffer.config import ConsumerConfig
from penstock.buffer.locations import LAST_ULID_MS, folder_of, is_data_path, segment_time, ulid_prefix
from penstock.buffer.manifest.queue import BufferQueue
from penstock.buffer.manifest.state import Collecting, Fate
from penstock.buffer.measures import Measures
from penstock.core import get_logger
from penstock.errors import StorageError
from penstock.storage import DeleteResult, ListsRanges, ObjectMeta, ObjectStore, url_of

_CANDIDATES_PER_READ = 2_000  # of the manifest
_PATHS_PER_DELETE = 500

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class GcDetails:
    """Why a cycle kept what it kept, and when that may change. Times are milliseconds since 1970.

    `waiting`: deletable, once the floor's grace period is over, at `waits_until`. `later`: not named, and below the
    next floor. `ahead`: named by a clock that was ahead. `named`: how many entries the queue has. A cycle that was not
    complete ran out of time, or was stopped.
    """

    deleted_bytes: int = 0
    named: int = 0
    waiting: int = 0
    waits_until: int = 0
    later: int = 0
    ahead: int = 0
    floor: int = 0
    is_complete: bool = True


@dataclass(frozen=True, slots=True)
class GcReport:
    """What a cycle did with the data objects and segments it found: how many it deleted, could not delete, and kept.

    After a dry run, `deleted` is what a cycle would have deleted.
    """

    deleted: int
    failed: int
    kept: int
    details: GcDetails = field(default_factory=GcDetails, compare=False, repr=False)


@dataclass(eq=False)
class Cycle:
    """How one cycle is run, and what it did so far. It lists everything, or only what may have to be deleted.

    When `is_over`, it ends at its next step, and still deletes once: so every cycle makes progress. When `is_stopped`,
    it deletes nothing more.
    """

    store: ObjectStore
    queue: BufferQueue
    config: ConsumerConfig
    rules: Collecting
    measures: Measures
    is_stopped: Callable[[], bool]
    is_over: Callable[[], bool]
    lists_everything: bool
    dry_run: bool
    _candidates: dict[str, ObjectMeta] = field(default_factory=dict)
    _deleted: int = 0
    _deleted_bytes: int = 0
    _failed: int = 0
    _is_complete: bool = True

    def run(self) -> GcReport:
        """Run it. Raises `InvalidInput` if the prefix belongs to another manifest, `StorageError` and `CorruptData`."""
        rules = self.rules
        fates: Counter[Fate] = Counter()
        for meta in self._listed():
            if self.is_over():
                self._is_complete = False
                break
            fate = rules.fate(meta)
            fates[fate] += 1
            if fate is Fate.DELETE:
                self._candidates[meta.path] = meta
                if len(self._candidates) >= _CANDIDATES_PER_READ:
                    self._delete_candidates()
        self._delete_candidates()
        if rules.warning is not None:
            _log.warning("%s", rules.warning)
        # Only now, when what was closed before is deleted.
        if rules.can_close and self._is_complete and not self.is_over() and not self.dry_run:
            self.queue.close_times(rules, self.is_over)
        details = GcDetails(
            deleted_bytes=self._deleted_bytes,
            named=rules.scope.entries,
            waiting=fates[Fate.WAITS],
            waits_until=rules.scope.waits_until,
            later=fates[Fate.LATER],
            ahead=fates[Fate.AHEAD],
            floor=rules.scope.floor,
            is_complete=self._is_complete,
        )
        return GcReport(self._deleted, self._failed, fates.total() - self._deleted - self._failed, details)

    def _listed(self) -> Iterator[ObjectMeta]:
        """Data objects, and segments where there are some: all of them, or those that may have to be deleted."""
        store, prefix, ranges = self.store, self.config.data_path_prefix, self.rules.scope.ranges
        if isinstance(store, ListsRanges) and ranges is not None and not self.lists_everything:
            paths = [_paths_of(prefix, first, last) for first, last in ranges if first <= last]
            yield from data_objects(store.list_ranges(prefix, paths), prefix)
        else:
            yield from data_objects(store.list_objects(prefix), prefix)
        if self.rules.has_segments:
            folder = folder_of(self.config.manifest_path)
            for meta in store.list_objects(folder):
                name = meta.path.rpartition("/")[2]
                if meta.path == f"{folder}/{name}" and segment_time(name) is not None:
                    yield meta

    def _delete_candidates(self) -> None:
        """Delete the candidates, unless the manifest that is read after they were listed names them."""
        candidates, self._candidates = self._candidates, {}
        if not candidates or self.is_stopped():
            self._is_complete = self._is_complete and not candidates
            return
        for path in self.queue.kept(self.rules, candidates, self.is_over):
            del candidates[path]
        paths = list(candidates)
        for start in range(0, len(paths), _PATHS_PER_DELETE):
            if start and self.is_over():
                self._is_complete = False
                return
            piece = paths[start : start + _PATHS_PER_DELETE]
            failed = set[str]() if self.dry_run else self._delete(piece)
            self._deleted += len(piece) - len(failed)
            self._failed += len(failed)
            self._deleted_bytes += sum(candidates[path].size for path in piece if path not in failed)

    def _delete(self, paths: list[str]) -> set[str]:
        """Delete objects, and return those that could not be deleted."""
        if not self._deleted and not self._failed:
            # Before the first delete: from here on no other buffer's data can be in the prefix.
            self.queue.own_prefix(self.config.data_path_prefix, claim=True)
        try:
            results = self.store.delete(paths)
        except StorageError as error:
            results = [DeleteResult(path, error) for path in paths]
        failed = {result.path: result.error for result in results if result.error is not None}
        for path, problem in failed.items():
            _log.warning("collecting %s from %s: %s; trying again later", path, url_of(self.store), problem)
        self.measures.gc_files_deleted.inc(len(paths) - len(failed))
        self.measures.gc_files_failed.inc(len(failed))
        return set(failed)


def data_objects(listed: Iterable[ObjectMeta], prefix: str) -> Iterator[ObjectMeta]:
    """The data objects directly below a prefix."""
    return (meta for meta in listed if is_data_path(meta.path, prefix))


def _paths_of(prefix: str, first: int, last: int) -> tuple[str, str]:
    """Between which paths the data objects of a range of times are."""
    end = ulid_prefix(last + 1) if last < LAST_ULID_MS else "8"
    return f"{prefix}/{ulid_prefix(first)}", f"{prefix}/{end}"
