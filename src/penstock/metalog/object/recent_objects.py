"""The objects of a log that this process wrote or read last: its subscriptions need not fetch them again."""

from __future__ import annotations

import threading
from collections import OrderedDict

from penstock.metalog.object.format import LogObject

_MOST_BYTES = 8 << 20
_MOST_OF_ONE = 1 << 20


class RecentObjects:
    """Some objects, by partition and first offset; those used last, up to a number of bytes. They never change."""

    def __init__(self, most_bytes: int = _MOST_BYTES) -> None:
        self._most_bytes = most_bytes
        self._objects = OrderedDict[tuple[int, int], LogObject]()
        self._size = 0
        self._lock = threading.Lock()

    def get(self, partition: int, first: int) -> LogObject | None:
        """The object, if it is here."""
        with self._lock:
            found = self._objects.get((partition, first))
            if found is not None:
                self._objects.move_to_end((partition, first))
            return found

    def add(self, partition: int, found: LogObject) -> None:
        """Keep an object, and let go of those that were not used for the longest."""
        if found.size > _MOST_OF_ONE:
            return
        with self._lock:
            if (partition, found.first) in self._objects:
                return
            self._objects[partition, found.first] = found
            self._size += _weight(found)
            while self._size > self._most_bytes:
                _, gone = self._objects.popitem(last=False)
                self._size -= _weight(gone)


def _weight(found: LogObject) -> int:
    """About how many bytes it takes here: many small payloads take more than their bytes."""
    return found.size + 400 + 40 * len(found.payloads)
