"""Object stores: memory, local disk, S3, GCS, Azure. Everything durable goes through here.

What lives here: `open_store`, the `ObjectStore` contract, and one implementation for each kind of place.

May import: `core`, `errors`, `metrics`.
"""

from typing import TYPE_CHECKING

from penstock.core.lazy_names import lazy_names

if TYPE_CHECKING:
    from penstock.storage.local import LocalStore
    from penstock.storage.local.folder import sync_directory, sync_upwards
    from penstock.storage.local.internal_directory import InternalDirectory
    from penstock.storage.local.lock import locked_if_free
    from penstock.storage.memory import MemoryStore
    from penstock.storage.object_store import (
        Data,
        DeleteResult,
        ListsRanges,
        Object,
        ObjectMeta,
        ObjectStore,
        Reserve,
        as_data,
        as_version,
        get_at_most,
        replace_with_reserve,
    )
    from penstock.storage.opening import check_path_in, local_path, open_store, url_of
    from penstock.storage.paths import check_path, check_paths, check_prefix, is_below, is_path
    from penstock.storage.redaction import redact, secrets_of
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "local": "LocalStore",
            "local.folder": "sync_directory sync_upwards",
            "local.internal_directory": "InternalDirectory",
            "local.lock": "locked_if_free",
            "memory": "MemoryStore",
            "object_store": "Data DeleteResult ListsRanges Object ObjectMeta ObjectStore Reserve as_data as_version "
            "get_at_most replace_with_reserve",
            "opening": "check_path_in local_path open_store url_of",
            "paths": "check_path check_paths check_prefix is_below is_path",
            "redaction": "redact secrets_of",
        },
    )

__all__ = [
    "DeleteResult",
    "ListsRanges",
    "LocalStore",
    "MemoryStore",
    "Object",
    "ObjectMeta",
    "ObjectStore",
    "Reserve",
    "check_path_in",
    "get_at_most",
    "open_store",
    "replace_with_reserve",
    "url_of",
]
