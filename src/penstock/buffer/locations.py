"""Where objects lie: data in `<prefix>/<ULID>.batch`, segments in `<manifest path>.d/<sequence>-<ULID>.seg`."""

from __future__ import annotations

import base64
import os
import re
import time
from collections.abc import Callable, Iterable
from typing import TypeAlias
from uuid import UUID

from penstock.errors import InvalidInput

MANIFEST_PATH = "ingest/manifest"

TimeRanges: TypeAlias = tuple[tuple[int, int], ...]
"""Ranges of ULID times that a collector has closed: nothing new is named in them, as nothing is below its floor.

Times are milliseconds since 1970. Ranges are pairs of their first and last time, in order, and none touches another.
"""

LAST_ULID_MS = (1 << 48) - 1
"""The last time that a ULID can have, in milliseconds since 1970."""

_SUFFIX = ".batch"
_ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"  # Crockford's
_TO_DIGITS = str.maketrans(_ALPHABET, "0123456789abcdefghijklmnopqrstuv")
_ULID = re.compile(r"[0-7][0-9A-HJKMNP-TV-Z]{25}")
_DATA_NAME = re.compile(r"[0-7][0-9A-HJKMNP-TV-Z]{25}\.batch")
_SEGMENT_NAME = re.compile(r"[0-9]{20}-([0-7][0-9A-HJKMNP-TV-Z]{25})\.seg")
_ULID_RANDOM_BYTES = 10
_ULIDS_PER_FETCH = 64
_WRITER_RANDOM_BYTES = 12
_ID_RANDOM_BYTES = 16


def is_data_name(name: str) -> bool:
    """Return whether a file name is that of a data object.

    >>> is_data_name("01ARZ3NDEKTSV4RRFFQ69G5FAV.batch"), is_data_name("manifest")
    (True, False)
    """
    return _DATA_NAME.fullmatch(name) is not None


def is_data_path(path: str, prefix: str) -> bool:
    """Return whether a path is a data object directly below a prefix."""
    folder, _, name = path.rpartition("/")
    return folder == prefix and is_data_name(name)


def ulid_time(text: str) -> int | None:
    """The time in a ULID, in milliseconds since 1970; None where the text is not a ULID.

    >>> ulid_time("01ARZ3NDEKTSV4RRFFQ69G5FAV"), ulid_time("manifest")
    (1469922850259, None)
    """
    if _ULID.fullmatch(text) is None:
        return None
    return int(text[:10].translate(_TO_DIGITS), 32)


def ulid_prefix(milliseconds: int) -> str:
    """How the ULIDs of a time begin: those of an earlier time sort before it, and all others at or after it.

    >>> ulid_prefix(1469922850259), ulid_prefix(0)
    ('01ARZ3NDEK', '0000000000')
    """
    return "".join(_ALPHABET[milliseconds >> shift & 31] for shift in range(45, -1, -5))


def location_time(location: str) -> int | None:
    """The ULID time of a data object's location, in milliseconds; None where its name is not a ULID.

    >>> location_time("ingest/01ARZ3NDEKTSV4RRFFQ69G5FAV.batch"), location_time("elsewhere/data.bin")
    (1469922850259, None)
    """
    name = location.rpartition("/")[2]
    return ulid_time(name.removesuffix(_SUFFIX)) if name.endswith(_SUFFIX) else None


def folder_of(manifest_path: str) -> str:
    """Where the segments of a manifest lie."""
    return f"{manifest_path}.d"


def segment_time(name: str) -> int | None:
    """The ULID time in a segment's file name, in milliseconds; None where it is no segment's name.

    >>> segment_time("00000000000000000000-01ARZ3NDEKTSV4RRFFQ69G5FAV.seg")
    1469922850259
    """
    found = _SEGMENT_NAME.fullmatch(name)
    return None if found is None else ulid_time(found[1])


def is_in_ranges(ranges: TimeRanges, at: int) -> bool:
    """Say whether a time is in one of the ranges.

    >>> [is_in_ranges(((5, 7),), at) for at in (4, 5, 7, 8)]
    [False, True, True, False]
    """
    return any(first <= at <= last for first, last in ranges)


def after_ranges(ranges: TimeRanges, at: int) -> int:
    """The first time from `at` on that is in none of the ranges.

    >>> after_ranges(((5, 7), (8, 9)), 6), after_ranges(((5, 7),), 3)
    (10, 3)
    """
    for first, last in ranges:
        if first <= at <= last:
            at = last + 1
    return at


def joined_ranges(ranges: Iterable[tuple[int, int]]) -> TimeRanges:
    """Ranges in order; those that overlap or touch are one.

    >>> joined_ranges([(8, 9), (1, 3), (4, 5), (2, 3)])
    ((1, 5), (8, 9))
    """
    found: list[tuple[int, int]] = []
    for first, last in sorted(ranges):
        if found and first <= found[-1][1] + 1:
            found[-1] = found[-1][0], max(found[-1][1], last)
        else:
            found.append((first, last))
    return tuple(found)


class _RandomPool:
    """Random bytes for ULIDs. One system call fetches many, because each call releases the interpreter lock."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        os.register_at_fork(after_in_child=self._pieces.clear)  # else a parent and its child would use the same bytes

    def __call__(self, count: int) -> bytes:
        """Random bytes that no other call gets."""
        if count != _ULID_RANDOM_BYTES:
            return os.urandom(count)
        try:
            return self._pieces.pop()  # in one step: no two threads get the same
        except IndexError:
            fetched = os.urandom(_ULID_RANDOM_BYTES * _ULIDS_PER_FETCH)
            places = range(_ULID_RANDOM_BYTES, len(fetched), _ULID_RANDOM_BYTES)
            self._pieces.extend([fetched[place : place + _ULID_RANDOM_BYTES] for place in places])
            return fetched[:_ULID_RANDOM_BYTES]


_random_bytes = _RandomPool()


class Names:
    """Creates unique names: ULIDs of the clock's time, above the collector's floor, in no closed range.

    They differ by 80 random bits, and nothing relies on their order. So a clock that was wrong for a moment names what
    was written in that moment, and nothing after it. Of version 1's collector nothing relies on the time in a name;
    version 2's goes by it, and by no clock. `randomness(n)` returns n random bytes.
    """

    def __init__(
        self, clock: Callable[[], float] = time.time, randomness: Callable[[int], bytes] = _random_bytes
    ) -> None:
        from ulid import ULID  # here, because its import takes longer than the rest of the buffer

        # Not in `ulid`: a fork while a background thread imports it would leave the child waiting for that import.
        self._ulid_of = ULID.from_bytes
        self._clock = clock
        self._randomness = randomness
        self._closed: TimeRanges = ()

    def keep_out_of(self, closed: TimeRanges) -> None:
        """From now on create no name whose time is in one of these ranges of a manifest's head."""
        self._closed = closed

    def ulid(self, floor: int = 0) -> str:
        """A new ULID, above the floor. Raises `InvalidInput` where no time is left above it."""
        now = min(max(int(self._clock() * 1000), 0), LAST_ULID_MS)
        milliseconds = after_ranges(self._closed, max(now, floor + 1))
        if milliseconds > LAST_ULID_MS:
            raise InvalidInput(f"no ULID has a time beyond the floor of this buffer, {floor} ms since 1970")
        # Not `ULID.from_timestamp`: within a millisecond it adds one to the last, and a forked child starts from its
        # parent's last. Both would write data under one name.
        return str(self._ulid_of(milliseconds.to_bytes(6, "big") + self._randomness(_ULID_RANDOM_BYTES)))

    def writer(self) -> str:
        """A new name for a writer of the manifest."""
        return base64.urlsafe_b64encode(self._randomness(_WRITER_RANDOM_BYTES)).decode()

    def buffer_id(self) -> UUID:
        """A new id for a buffer."""
        return UUID(bytes=self._randomness(_ID_RANDOM_BYTES), version=4)

    def location(self, prefix: str, floor: int = 0) -> str:
        """The path of a new data object."""
        return f"{prefix}/{self.ulid(floor)}{_SUFFIX}"
