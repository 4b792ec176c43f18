"""Which buffer it is: `<manifest path>.id` beside a manifest of version 1, and `<prefix>/.owner` beside data objects.

The owner holds the buffer's id, and where manifest and prefix are as seen from the root of its store. So a buffer
that is opened from another root, and finds its data under other paths, is refused as well. The order of writes is in
`docs/design/buffer-id.md`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeVar
from uuid import UUID, uuid4

from penstock.buffer.manifest.cas import decoded
from penstock.core import Backoff, call_with_retries, decode_fields, encode_fields, get_logger
from penstock.errors import AlreadyExists, CorruptData, InvalidInput, NotFound, OutcomeUnknown
from penstock.storage import ObjectStore, Reserve, get_at_most, replace_with_reserve, url_of

OWNER = ".owner"

_VERSION = 1
_MAX_BYTES = 64 << 10  # of such an object, to be read: a path in it has at most 1,024
_FIELDS = {"id": str, "manifest": str, "prefix": str}
_TRIES = 10

T = TypeVar("T")

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Owner:
    """The buffer that a prefix belongs to."""

    id: UUID
    manifest: str
    prefix: str

    def encode(self) -> bytes:
        """The bytes of the object.

        >>> Owner.decode(Owner(UUID(int=7), "ingest/manifest", "ingest").encode()).prefix
        'ingest'
        """
        fields = {"id": str(self.id), "manifest": self.manifest, "prefix": self.prefix}
        return encode_fields({"version": _VERSION, **fields})

    @classmethod
    def decode(cls, data: bytes) -> Owner:
        """Read the object's bytes. Raises `CorruptData`."""
        fields = decode_fields(data, _FIELDS, _VERSION)
        return cls(as_id(str(fields["id"])), str(fields["manifest"]), str(fields["prefix"]))


def as_id(text: str) -> UUID:
    """A buffer's id from its text. Raises `CorruptData` for any other text."""
    try:
        return UUID(text)
    except ValueError as error:
        raise CorruptData(f"{text!r:.100} is no id of a buffer, which is a UUID") from error


def id_path(manifest_path: str) -> str:
    """Where the id of a buffer is whose manifest is version 1, which cannot hold one.

    OpenData's crate never reads it: its collector ignores everything that is not named `<ULID>.batch`.
    """
    return f"{manifest_path}.id"


def read_id(store: ObjectStore, manifest_path: str) -> UUID | None:
    """The id that lies beside a manifest; None where there is none. Raises `CorruptData` and `StorageError`."""
    path = id_path(manifest_path)
    try:
        return decoded(_decode_id, get_at_most(store, path, _MAX_BYTES).data, f"{url_of(store)}/{path}")
    except NotFound:
        return None


def write_id(store: ObjectStore, manifest_path: str, lost: UUID | None = None, reserve: Reserve | None = None) -> UUID:
    """The id that lies beside a manifest. Where there is none it is written: the one that was lost, or a new one.

    `reserve` says whether that may use the reserve of a full disk. Raises as `read_id` does.
    """
    path, new = id_path(manifest_path), lost or uuid4()
    read = partial(read_id, store, manifest_path)
    # Another process's id, or this one's own: whichever is there is the buffer's.
    data = encode_fields({"version": _VERSION, "id": str(new)})
    return read() or create_once(store, path, data, read, reserve) or new


def _decode_id(data: bytes) -> UUID:
    return as_id(str(decode_fields(data, {"id": str}, _VERSION)["id"]))


def read_owner(store: ObjectStore, prefix: str) -> Owner | None:
    """The buffer that a prefix belongs to; None where it has no owner yet. Raises `CorruptData` and `StorageError`."""
    path = f"{prefix}/{OWNER}"
    try:
        return Owner.decode(get_at_most(store, path, _MAX_BYTES).data)
    except NotFound:
        return None
    except CorruptData as error:
        raise CorruptData(
            f"{path} in {url_of(store)}, which says whose the data objects beside it are, cannot be read: {error}; "
            "nothing is written or deleted there. If one buffer alone uses this prefix, delete the object: it is "
            "written again"
        ) from error


def claim_prefix(store: ObjectStore, owner: Owner, reserve: Reserve | None) -> Owner:
    """Write the owner of a prefix, where it has none yet, and return the one that it has then.

    `reserve` says whether the claim may use the reserve of a full disk: a collector's may, for it precedes deletes.
    """
    path = f"{owner.prefix}/{OWNER}"
    return create_once(store, path, owner.encode(), lambda: read_owner(store, owner.prefix), reserve) or owner


def create_once(
    store: ObjectStore, path: str, data: bytes, read: Callable[[], T | None], reserve: Reserve | None
) -> T | None:
    """Write an object that is written once; or return what `read` finds there, whichever process has written it.

    After a write that did not succeed the content decides, and no reply. Raises `OutcomeUnknown` after a few tries.
    """
    tried = False

    def create() -> T | None:
        nonlocal tried
        found = read() if tried else None
        if found is None:
            tried = True
            replace_with_reserve(store, path, data, None, reserve)
        return found

    def warn(error: Exception) -> None:
        _log.info("creating %s in %s: %s; reading it again", path, url_of(store), error)

    lost = (AlreadyExists, OutcomeUnknown)
    try:
        return call_with_retries(create, Backoff(0.0, 0.0), tries=_TRIES, on=lost, warn=warn)
    except lost as error:
        found = read()
        if found is not None:
            return found
        raise OutcomeUnknown(
            f"after {_TRIES} tries {path} in {url_of(store)} is neither there nor can it be written"
        ) from error


def owner_id(store: ObjectStore, prefix: str, manifest: str) -> UUID | None:
    """The id of the buffer with this manifest, if the prefix is its own; else None. Raises as `read_owner` does."""
    found = read_owner(store, prefix)
    return found.id if found is not None and (found.manifest, found.prefix) == (manifest, prefix) else None


def refuse_deleted(store: ObjectStore, prefix: str, manifest: str, is_there: Callable[[], bool]) -> None:
    """Raise `InvalidInput` where a prefix is owned by the buffer of a manifest that is not there.

    An owner is written after the manifest, so that one was deleted. A new one in its place would know none of the data.
    `is_there` looks for the manifest, after the owner was read: both may have been created just now.
    """
    found = owner_id(store, prefix, manifest)
    if found is not None and not is_there():
        raise InvalidInput(
            f"there is no manifest {manifest!r} in {url_of(store)}, and the data in {prefix!r} belongs to it (buffer "
            f"{found}): the manifest was deleted. Nothing is written or deleted. Restore it from a copy; or, to begin "
            f"anew, delete everything below {prefix!r} and the objects whose names begin with {manifest!r}, or use "
            "another manifest_path and data_path_prefix"
        )


def not_owned(store: ObjectStore, owner: Owner, mine: UUID | None, manifest: str, prefix: str) -> InvalidInput:
    """What is raised where a prefix has another owner than the buffer `mine` with this manifest and prefix."""
    where = f"the prefix {prefix!r} in {url_of(store)}"
    if mine is None:
        return InvalidInput(
            f"{where} belongs to the buffer {owner.id} with the manifest {owner.manifest!r}, and there is no buffer "
            f"with an id behind {manifest!r} here: the prefix is another buffer's, or a manifest was deleted. Use "
            f"another data_path_prefix; if the buffer {owner.id} was deleted, delete its data objects and "
            f"{prefix}/{OWNER} too"
        )
    if owner.id != mine:
        return InvalidInput(
            f"{where} belongs to the buffer {owner.id} with the manifest {owner.manifest!r}, not to {mine} with the "
            f"manifest {manifest!r}; give each buffer a data_path_prefix of its own. If the buffer {owner.id} was "
            f"deleted, delete its data objects and {prefix}/{OWNER} too"
        )
    return InvalidInput(
        f"{where} belongs to this buffer ({mine}), but as seen from another place: there its manifest is "
        f"{owner.manifest!r} and its prefix {owner.prefix!r}, here {manifest!r} and {prefix!r}. Open it where the "
        "others do: paths in a manifest count from the root of the store"
    )
