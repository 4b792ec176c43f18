"""Object stores: memory, local disk, S3, GCS, Azure. Everything durable goes through here.

What lives here: `open_store`, the `ObjectStore` contract, and one implementation for each kind of place.

May import: `core`, `errors`, `metrics`.
"""

from typing import TYPE_CHECKING

from penstock.core.lazy_names import lazy_names

if TYPE_CHECKING:
    from penstock.storage.keywords import get_at_most, replace_with_reserve
    from penstock.storage.local import LocalStore
    from penstock.storage.local.folder import sync_directory as sync_directory
    from penstock.storage.local.internal_directory import InternalDirectory as InternalDirectory
    from penstock.storage.local.lock import locked_if_free as locked_if_free
    from penstock.storage.memory import MemoryStore
    from penstock.storage.object_store import (
        Data as Data,
    )
    from penstock.storage.object_store import (
        DeleteResult,
        ListsRanges,
        Object,
        ObjectMeta,
        ObjectStore,
        Reserve,
    )
    from penstock.storage.object_store import (
        as_data as as_data,
    )
    from penstock.storage.object_store import (
        as_version as as_version,
    )
    from penstock.storage.opening import check_path_in, open_store, url_of
    from penstock.storage.opening import local_path as local_path
    from penstock.storage.paths import (
        check_path as check_path,
    )
    from penstock.storage.paths import (
        check_paths as check_paths,
    )
    from penstock.storage.paths import (
        check_prefix as check_prefix,
    )
    from penstock.storage.paths import (
        is_below as is_below,
    )
    from penstock.storage.paths import (
        is_path as is_path,
    )
    from penstock.storage.redaction import redact as redact
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "penstock.storage.keywords": ("get_at_most", "replace_with_reserve"),
            "penstock.storage.local": ("LocalStore",),
            "penstock.storage.local.folder": ("sync_directory",),
            "penstock.storage.local.lock": ("locked_if_free",),
            "penstock.storage.local.internal_directory": ("InternalDirectory",),
            "penstock.storage.memory": ("MemoryStore",),
            "penstock.storage.object_store": (
                "Data",
                "DeleteResult",
                "ListsRanges",
                "Object",
                "ObjectMeta",
                "ObjectStore",
                "Reserve",
                "as_data",
                "as_version",
            ),
            "penstock.storage.opening": ("check_path_in", "local_path", "open_store", "url_of"),
            "penstock.storage.paths": ("check_path", "check_paths", "check_prefix", "is_below", "is_path"),
            "penstock.storage.redaction": ("redact",),
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
