"""Object stores: memory, local disk, S3, GCS, Azure. Everything durable goes through here.

What lives here: `open_store`, the `ObjectStore` contract, and one implementation for each kind of place.

May import: `errors`, `metrics`.
"""

from typing import TYPE_CHECKING

from penstock.lazy_names import lazy_names

if TYPE_CHECKING:
    from penstock.storage.keywords import get_at_most, replace_with_reserve
    from penstock.storage.local import LocalStore
    from penstock.storage.memory import MemoryStore
    from penstock.storage.object_store import DeleteResult, ListsRanges, Object, ObjectMeta, ObjectStore, Reserve
    from penstock.storage.opening import check_path_in, open_store, url_of
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "penstock.storage.keywords": ("get_at_most", "replace_with_reserve"),
            "penstock.storage.local": ("LocalStore",),
            "penstock.storage.memory": ("MemoryStore",),
            "penstock.storage.object_store": (
                "DeleteResult",
                "ListsRanges",
                "Object",
                "ObjectMeta",
                "ObjectStore",
                "Reserve",
            ),
            "penstock.storage.opening": ("check_path_in", "open_store", "url_of"),
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
