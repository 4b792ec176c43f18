"""`<manifest path>.id`: the id of a buffer whose manifest is version 1, which cannot hold one.

OpenData's crate never looks at it: its collector passes over everything that is not named `<ULID>.batch`.
"""

from __future__ import annotations

from uuid import UUID, uuid4

from penstock.buffer.manifest.cas import decoded
from penstock.buffer.manifest.ownership import as_id
from penstock.core import decode_fields, encode_fields
from penstock.errors import AlreadyExists, NotFound, OutcomeUnknown
from penstock.storage import ObjectStore, Reserve, get_at_most, replace_with_reserve, url_of

_VERSION = 1
_MAX_BYTES = 64 << 10  # of such an object, to be read: a path in it has at most 1,024
_TRIES = 10


def id_path(manifest_path: str) -> str:
    """Where the id of a buffer with this manifest is."""
    return f"{manifest_path}.id"


def read_id(store: ObjectStore, manifest_path: str) -> UUID | None:
    """The id that lies beside a manifest; None where there is none. Raises `CorruptData` and `StorageError`."""
    path = id_path(manifest_path)
    try:
        data = get_at_most(store, path, _MAX_BYTES).data
    except NotFound:
        return None
    return decoded(_decode, data, f"{url_of(store)}/{path}")


def write_id(store: ObjectStore, manifest_path: str, lost: UUID | None = None, reserve: Reserve | None = None) -> UUID:
    """The id that lies beside a manifest. Where there is none it is written: the one that was lost, or a new one.

    `reserve` says whether that may use the reserve of a full disk. Raises as `read_id` does.
    """
    path = id_path(manifest_path)
    for _ in range(_TRIES):
        found = read_id(store, manifest_path)
        if found is not None:
            return found
        new = lost or uuid4()
        try:
            replace_with_reserve(store, path, _encode(new), None, reserve)
        except (AlreadyExists, OutcomeUnknown):
            continue  # another process's id, or this one's own: whichever is there is the buffer's
        return new
    raise OutcomeUnknown(f"after {_TRIES} tries {path} in {url_of(store)} is neither there nor can it be written")


def _encode(buffer_id: UUID) -> bytes:
    return encode_fields({"version": _VERSION, "id": str(buffer_id)})


def _decode(data: bytes) -> UUID:
    return as_id(str(decode_fields(data, {"id": str}, _VERSION)["id"]))
