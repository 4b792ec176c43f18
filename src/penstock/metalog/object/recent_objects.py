"""The objects of a log that this process wrote or read last: its subscriptions need not fetch them again."""

from __future__ import annotations

import threading
from collections import OrderedDict

from penstock.metalog.object.format import LogObject

_MAX_BYTES = 8 << 20
_MAX_BYTES_PER_OBJECT = 1 << 20


class RecentObjects:
    """Objects by partition and first offset: those used last, up to `max_bytes` of memory. An object never changes."""

    def __init__(self, max_bytes: int = _MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        self._objects = OrderedDict[tuple[int, int], LogObject]()
        self._bytes = 0
        self._lock = threading.Lock()

    def get(self, partition: int, first: int) -> LogObject | None:
        """The object, if it is kept here."""
        with self._lock:
            found = self._objects.get((partition, first))
            if found is not None:
                self._objects.move_to_end((partition, first))
            return found

    def add(self, partition: int, found: LogObject) -> None:
        """Keep an object, and drop the least recently used ones where there are too many bytes."""
        if found.size > _MAX_BYTES_PER_OBJECT:
            return
        with self._lock:
            if (partition, found.first) in self._objects:
                return
            self._objects[partition, found.first] = found
            self._bytes += _memory_bytes(found)
            while self._bytes > self._max_bytes:
                _, dropped = self._objects.popitem(last=False)
                self._bytes -= _memory_bytes(dropped)


def _memory_bytes(found: LogObject) -> int:
    """About how much memory it takes: each payload costs some bytes beyond its own."""
    return found.size + 400 + 40 * len(found.payloads)
