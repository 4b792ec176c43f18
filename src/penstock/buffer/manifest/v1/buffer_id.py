"""`<manifest path>.id`: the id of a buffer whose manifest is version 1, which cannot hold one.

OpenData's crate never looks at it: its collector passes over everything that is not named `<ULID>.batch`.
"""

from __future__ import annotations

from uuid import UUID, uuid4

from penstock.buffer.manifest.cas import decoded
from penstock.buffer.manifest.ownership import as_id, create_once
from penstock.core import decode_fields, encode_fields
from penstock.errors import NotFound
from penstock.storage import ObjectStore, Reserve, get_at_most, url_of

_VERSION = 1
_MAX_BYTES = 64 << 10  # of such an object, to be read: a path in it has at most 1,024


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
    path, new = id_path(manifest_path), lost or uuid4()

    def read() -> UUID | None:
        return read_id(store, manifest_path)

    # Another process's id, or this one's own: whichever is there is the buffer's.
    return read() or create_once(store, path, _encode(new), read, reserve) or new


def _encode(buffer_id: UUID) -> bytes:
    return encode_fields({"version": _VERSION, "id": str(buffer_id)})


def _decode(data: bytes) -> UUID:
    return as_id(str(decode_fields(data, {"id": str}, _VERSION)["id"]))
