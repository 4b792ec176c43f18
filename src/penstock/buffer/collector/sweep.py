"""The deletes of one cycle: candidates are compared with the manifest in chunks, and deleted.

So a cycle keeps a bounded number of paths in memory, however many objects there are.
"""

from __future__ import annotations

from collections.abc import Callable

from penstock.storage import ObjectMeta

CANDIDATES_PER_READ = 2_000
"""How many candidates are compared with one read of the manifest."""

_PATHS_PER_DELETE = 500

Named = Callable[[dict[str, ObjectMeta]], set[str]]
"""Reads the manifest, and returns which of the candidates it names."""


class Sweep:
    """Deletes candidates, unless the manifest that is read after they were listed names them."""

    def __init__(
        self,
        named: Named,
        delete: Callable[[list[str]], list[str]],
        is_over: Callable[[], bool],
        is_stopped: Callable[[], bool],
        claim: Callable[[], object],
        *,
        dry_run: bool = False,
    ) -> None:
        self._named = named
        self._delete = delete
        self._is_over = is_over
        self._is_stopped = is_stopped
        self._claim = claim
        self._dry_run = dry_run
        self._waiting: dict[str, ObjectMeta] = {}
        self.deleted = 0
        self.deleted_bytes = 0
        self.failed = 0
        self.spared = 0
        """How many candidates the manifest names."""
        self.is_complete = True
        """Whether the cycle had time for everything."""

    def offer(self, meta: ObjectMeta) -> None:
        """Delete an object, now or with others after it."""
        self._waiting[meta.path] = meta
        if len(self._waiting) >= CANDIDATES_PER_READ:
            self.flush()

    def flush(self) -> None:
        """Delete the candidates. Where time is up, one call of deletes is still made: so every cycle makes progress."""
        waiting, self._waiting = self._waiting, {}
        if not waiting or self._is_stopped():
            self.is_complete = self.is_complete and not waiting
            return
        for path in self._named(waiting):
            del waiting[path]
            self.spared += 1
        paths = list(waiting)
        for start in range(0, len(paths), _PATHS_PER_DELETE):
            if start and self._is_over():
                self.is_complete = False
                return
            piece = paths[start : start + _PATHS_PER_DELETE]
            failed = set() if self._dry_run else self._delete_claimed(piece)
            self.deleted += len(piece) - len(failed)
            self.failed += len(failed)
            self.deleted_bytes += sum(waiting[path].size for path in piece if path not in failed)

    def _delete_claimed(self, paths: list[str]) -> set[str]:
        """Delete paths, and return those that failed. Before the first delete of a cycle, the prefix is claimed."""
        if not self.deleted and not self.failed:
            self._claim()
        return set(self._delete(paths))
