"""What a collector may delete on version 1: what the manifest does not name, and is older than it by a grace period.

Both times are the store's. Why that is safe is in `docs/design/buffer.md`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import timedelta
from typing import ClassVar

from penstock.buffer.manifest.cas import Versioned
from penstock.buffer.manifest.state import CycleClock, CycleScope, Fate, QueueState
from penstock.buffer.manifest.v2.segments import Segments
from penstock.storage import ObjectMeta


class OpenDataCollecting:
    """The rules of one cycle on a manifest of version 1."""

    has_segments: ClassVar[bool] = False
    warning: ClassVar[None] = None
    can_close: ClassVar[bool] = False

    def __init__(self, state: QueueState, clock: CycleClock, segments: Segments) -> None:
        self._clock = clock
        self._segments = segments
        self._names = _names_in(state, segments)
        self.scope = CycleScope(len(self._names))

    def fate(self, meta: ObjectMeta) -> Fate:
        if _name(meta.path) in self._names or not self.is_old(meta, self._clock):
            return Fate.KEEP
        return Fate.DELETE

    def kept(
        self, found: Versioned[QueueState], listed: Mapping[str, ObjectMeta], is_over: Callable[[], bool]
    ) -> set[str]:
        """Which of the objects the manifest names, or is too young to judge; read after they were listed."""
        if found.version is None or found.state.guards_new_objects:
            return set(listed)  # deleted, or upgraded: the next cycle goes by what is there then
        names, clock = _names_in(found.state, self._segments), replace(self._clock, written=found.last_modified)
        return {path for path, meta in listed.items() if _name(path) in names or not self.is_old(meta, clock)}

    def is_old(self, meta: ObjectMeta, clock: CycleClock) -> bool:
        """Whether the manifest was written a grace period after an object: both are the store's times."""
        return clock.written is not None and meta.last_modified <= clock.written - timedelta(seconds=clock.grace)

    def closed_in(self, state: QueueState, is_over: Callable[[], bool]) -> QueueState | None:
        """Nothing: producers go by their deadline."""
        return None


def _names_in(state: QueueState, segments: Segments) -> set[str]:
    """The file names of what a manifest names. A ULID is unique, and the folders of a path depend on the store's root.

    So a live object is kept even where the manifest is opened from another root, and no owner says so.
    """
    entries = state.entries(state.first_sequence, state.next_sequence, segments)
    return {_name(entry.location) for entry in entries}


def _name(path: str) -> str:
    return path.rpartition("/")[2]
