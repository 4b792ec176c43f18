"""Where data objects lie: `<prefix>/<ULID>.batch`, beside the `.owner` that names their manifest."""

from __future__ import annotations

import logging
import re

from penstock.errors import AlreadyExists, InvalidInput, NotFound, OutcomeUnknown
from penstock.storage import ObjectStore, url_of

OWNER = ".owner"

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


def new_location(prefix: str, now: float) -> str:
    """A name that nobody else has. Its time is for people to read: nothing relies on it."""
    from ulid import ULID  # here, for it takes longer to load than all the rest of the buffer

    milliseconds = min(max(int(now * 1000), 0), _LAST_MS)
    return f"{prefix}/{ULID.from_timestamp(milliseconds)}.batch"


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
