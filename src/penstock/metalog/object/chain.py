"""The objects of one partition of an object log: each is named by its first offset, and ends where the next begins."""

from __future__ import annotations

import re
import threading
from collections.abc import Sequence
from dataclasses import dataclass

from penstock.core import get_logger
from penstock.errors import CorruptData, NotFound
from penstock.metalog.object.format import LogObject, decode, decode_many
from penstock.metalog.object.recent_objects import RecentObjects
from penstock.metalog.object.settings import ObjectLogSettings
from penstock.storage import ObjectStore, get_at_most, url_of

_MAX_HINT_BYTES = 1 << 10
_NAME = re.compile(r"[0-9]{20}")
_ROLL_UP = re.compile(r"([0-9]{20})-([0-9]{1,20})")
_SETTINGS = ObjectLogSettings()

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class PartitionEnd:
    """Where a partition ended when it was looked at: its high-water mark, and how many objects are before it."""

    offset: int
    objects: int

    @staticmethod
    def after(found: LogObject) -> PartitionEnd:
        """The end of a partition whose last object this is."""
        return PartitionEnd(found.end, found.number + 1)


@dataclass(frozen=True, slots=True)
class RollUp:
    """A copy of some objects in a row, with the offsets from `first` to before `end`."""

    first: int
    end: int
    path: str


class Chain:
    """One partition of an object log. It remembers where the chain ended when it was read or written last."""

    def __init__(
        self, store: ObjectStore, partition: int, recent: RecentObjects, settings: ObjectLogSettings = _SETTINGS
    ) -> None:
        self.store = store
        self.partition = partition
        self.settings = settings
        self._recent = recent
        self.known_end: PartitionEnd | None = None
        """The last end that was seen; the chain may be longer by now. None: it was not read yet."""
        self._lock = threading.Lock()

    def path(self, first: int) -> str:
        """The path of the object that begins at an offset."""
        return f"{self.partition}/{first:020d}"

    def where(self, path: str) -> str:
        """The URL of a path, for messages."""
        return f"{url_of(self.store)}/{path}"

    def read(self, first: int) -> LogObject | None:
        """The object that begins at an offset, or None. Raises `CorruptData` naming it, and `StorageError`."""
        found = self._recent.get(self.partition, first)
        return found if found is not None else self.fetch(first)

    def fetch(self, first: int) -> LogObject | None:
        """As `read`, but always from the store."""
        path = self.path(first)
        try:
            data = self.store.get(path).data
        except NotFound:
            return None
        try:
            found = decode(data)
        except CorruptData as error:
            raise CorruptData(f"{self.where(path)}: {error}") from error
        if found.first != first:
            raise CorruptData(f"{self.where(path)} is a copy of the object that begins at {found.first}")
        self.note(found)
        return found

    def note(self, found: LogObject) -> None:
        """Remember an object of the chain that was read or written."""
        self._recent.add(self.partition, found)
        with self._lock:
            if self.known_end is None or found.end > self.known_end.offset:
                self.known_end = PartitionEnd.after(found)

    def find_end(self) -> PartitionEnd:
        """Walk to where the chain ends now. Raises `CorruptData` and `StorageError`."""
        end = self.known_end or self._jump(PartitionEnd(0, 0)) or self._listed_end()
        walked = 0
        while (found := self.fetch(end.offset)) is not None:
            end = PartitionEnd.after(found)
            walked += 1
            if walked % self.settings.hint_every == 0:
                end = self._jump(end) or end
        with self._lock:
            if self.known_end is None:
                self.known_end = end  # it is empty, and that is known now
        return end

    def locate(self, offset: int) -> tuple[int, Sequence[LogObject]]:
        """The first offset of the object to read next for an offset: of the one that has it, or of one before it.

        Also returns the objects in a row from there on that were read on the way. Raises `CorruptData` and
        `StorageError`.
        """
        end = self.known_end
        if offset == 0 or (end is not None and offset == end.offset):
            return offset, []
        if (exact := self.read(offset)) is not None:
            return offset, [exact]
        rolled_up = self.roll_ups()
        for one in rolled_up:
            if one.first <= offset < one.end and (found := self.try_roll_up(one)):
                found = [part for part in found if part.end > offset]
                return found[0].first, found
        if len(rolled_up) * self.settings.roll_up_every >= self.settings.long_chain:
            hinted = self._hinted()
            starts = [one.end for one in rolled_up] + ([hinted.first] if hinted else [])
            for start in sorted((start for start in starts if start <= offset), reverse=True):
                if self.read(start) is not None:
                    return start, []
        return max((name for name in self._names() if name <= offset), default=0), []

    def hint(self, first: int) -> None:
        """Write the hint: an object near the end, for readers that look for it. A failure costs only their time."""
        try:
            self.store.put(f"{self.partition}/hint", b"%020d" % first)
        except Exception as error:  # noqa: BLE001  any error of a store: the record is in the log
            _log.warning(
                "could not write %s: %s; to find the end will take longer", self.where(f"{self.partition}/hint"), error
            )

    def hint_further(self, first: int) -> None:
        """As `hint`, unless the hint names a later object: other writers may have gone on since."""
        try:
            stored = get_at_most(self.store, f"{self.partition}/hint", _MAX_HINT_BYTES).data
        except Exception:  # noqa: BLE001  there is none, or the store does not answer
            stored = b""
        if not (_NAME.fullmatch(stored.decode("ascii", "replace")) and int(stored) >= first):
            self.hint(first)

    def roll_ups(self) -> list[RollUp]:
        """The roll-ups of this partition by first offset; of several with the same one, the longest first."""
        found = []
        for meta in self.store.list_objects(f"{self.partition}/rollups"):
            if match := _ROLL_UP.fullmatch(meta.path.rpartition("/")[2]):
                first, count = int(match[1]), int(match[2])
                found.append(RollUp(first, first + count, meta.path))
        return sorted(found, key=lambda one: (one.first, -one.end))

    def read_roll_up(self, one: RollUp) -> Sequence[LogObject]:
        """The objects in a roll-up. Raises `CorruptData` naming it, and `StorageError`."""
        try:
            objects = list(decode_many(self.store.get(one.path).data))
        except CorruptData as error:
            raise CorruptData(f"{self.where(one.path)}: {error}") from error
        ends = [one.first, *(found.end for found in objects)]
        if not objects or [found.first for found in objects] != ends[:-1] or ends[-1] != one.end:
            raise CorruptData(f"{self.where(one.path)} does not have the offsets of its name, one after another")
        return objects

    def try_roll_up(self, one: RollUp) -> Sequence[LogObject]:
        """As `read_roll_up`, but none where it cannot be used: its originals can. Raises `StorageError`."""
        try:
            return self.read_roll_up(one)
        except (CorruptData, NotFound) as error:
            _log.warning("a roll-up cannot be used, and the objects that it is a copy of are read: %s", error)
            return []

    def _names(self) -> list[int]:
        names = (meta.path.split("/") for meta in self.store.list_objects(str(self.partition)))
        return [int(parts[1]) for parts in names if len(parts) == 2 and _NAME.fullmatch(parts[1])]

    def _listed_end(self) -> PartitionEnd:
        names = self._names()
        found = self.fetch(max(names)) if names else None
        return PartitionEnd(0, 0) if found is None else PartitionEnd.after(found)

    def _jump(self, end: PartitionEnd) -> PartitionEnd | None:
        """The end of the object that the hint names, if that is further."""
        found = self._hinted()
        return PartitionEnd.after(found) if found is not None and found.end > end.offset else None

    def _hinted(self) -> LogObject | None:
        where = self.where(f"{self.partition}/hint")
        try:
            data = get_at_most(self.store, f"{self.partition}/hint", _MAX_HINT_BYTES).data
        except NotFound:
            return None
        except CorruptData as error:
            _log.warning("%s is no hint, and is ignored: %s", where, error)
            return None
        if not _NAME.fullmatch(data.decode("ascii", "replace")):
            _log.warning("%s is no hint, and is ignored: %r", where, data[:40])
            return None
        try:
            found = self.read(int(data))
        except CorruptData as error:
            _log.warning("%s names an object that cannot be read, and is ignored: %s", where, error)
            return None
        if found is None:
            _log.warning("%s names %s, which is not there, and is ignored", where, data.decode())
        return found
