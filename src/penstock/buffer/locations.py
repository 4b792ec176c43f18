"""Where data objects lie: `<prefix>/<ULID>.batch`, beside the `.owner` that names their manifest."""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Callable

from penstock.errors import AlreadyExists, InvalidInput, NotFound, OutcomeUnknown
from penstock.storage import ObjectStore, url_of

MANIFEST_PATH = "ingest/manifest"
OWNER = ".owner"

_SUFFIX = ".batch"
_ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"  # Crockford's
_TO_DIGITS = str.maketrans(_ALPHABET, "0123456789abcdefghijklmnopqrstuv")
_ULID = re.compile(r"[0-7][0-9A-HJKMNP-TV-Z]{25}")
_DATA_NAME = re.compile(r"[0-7][0-9A-HJKMNP-TV-Z]{25}\.batch")
_LAST_MS = (1 << 48) - 1
_TRIES = 10

_log = logging.getLogger(__name__)


def is_data_name(name: str) -> bool:
    """Say whether a file name is that of a data object.

    >>> is_data_name("01ARZ3NDEKTSV4RRFFQ69G5FAV.batch"), is_data_name("manifest")
    (True, False)
    """
    return _DATA_NAME.fullmatch(name) is not None


def is_data_path(path: str, prefix: str) -> bool:
    """Say whether a path is a data object directly below a prefix."""
    folder, _, name = path.rpartition("/")
    return folder == prefix and is_data_name(name)


def ulid_time(text: str) -> int | None:
    """The time in a ULID, in milliseconds since 1970; None where it is none.

    >>> ulid_time("01ARZ3NDEKTSV4RRFFQ69G5FAV"), ulid_time("manifest")
    (1469922850259, None)
    """
    if _ULID.fullmatch(text) is None:
        return None
    return int(text[:10].translate(_TO_DIGITS), 32)


def location_time(location: str) -> int | None:
    """The ULID time of a data object's location, in milliseconds; None where its name is no ULID's.

    >>> location_time("ingest/01ARZ3NDEKTSV4RRFFQ69G5FAV.batch"), location_time("elsewhere/data.bin")
    (1469922850259, None)
    """
    name = location.rpartition("/")[2]
    return ulid_time(name.removesuffix(_SUFFIX)) if name.endswith(_SUFFIX) else None


class Names:
    """Makes names that nobody else has: ULIDs whose time is never below the last, nor below a collector's floor.

    Of version 1's collector nothing relies on that time; version 2's goes by it, and by no clock.
    """

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._last = 0

    def ulid(self, floor: int = 0) -> str:
        """A new ULID, above the floor. Raises `InvalidInput` where no time is left above it."""
        from ulid import ULID  # here, for it takes longer to load than all the rest of the buffer

        with self._lock:
            self._last = milliseconds = max(min(max(int(self._clock() * 1000), 0), _LAST_MS), self._last, floor + 1)
        if milliseconds > _LAST_MS:
            raise InvalidInput(f"no ULID has a time beyond the floor of this buffer, {floor} ms since 1970")
        return str(ULID.from_timestamp(milliseconds))

    def location(self, prefix: str, floor: int = 0) -> str:
        """Where a new data object goes."""
        return f"{prefix}/{self.ulid(floor)}{_SUFFIX}"


def check_owner(store: ObjectStore, prefix: str, manifest: str, *, claim: bool) -> bool:
    """Say whether a prefix belongs to this manifest. With `claim`, take it if it is nobody's yet.

    Raises `InvalidInput` if it belongs to another: two manifests on one prefix would collect each other's data.
    """
    path = f"{prefix}/{OWNER}"
    for _ in range(_TRIES):
        try:
            owner = store.get(path).data.decode(errors="replace").strip("\r\n")
        except NotFound:
            if not claim:
                return False
        else:
            if owner != manifest:
                raise InvalidInput(
                    f"the prefix {prefix!r} in {url_of(store)} belongs to the manifest {owner!r}, not to {manifest!r}; "
                    "give each buffer a data_path_prefix of its own"
                )
            return True
        try:
            store.put_if_absent(path, manifest.encode())
        except (AlreadyExists, OutcomeUnknown) as error:
            # Somebody's, or one's own: reading again tells, for the content is all that matters here.
            _log.info("claiming %s in %s: %s; reading it again", path, url_of(store), error)
        else:
            return True
    raise OutcomeUnknown(f"after {_TRIES} tries {path} in {url_of(store)} is neither there nor can it be written")
