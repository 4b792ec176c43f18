"""Object stores: memory, local disk, S3, GCS, Azure. Everything durable goes through here.

What lives here: `open_store`, the `ObjectStore` contract, and one implementation for each kind of place.

May import: `errors`, `metrics`.
"""

from penstock.storage.local import LocalStore
from penstock.storage.memory import MemoryStore
from penstock.storage.object_store import DeleteResult, Object, ObjectMeta, ObjectStore
from penstock.storage.opening import open_store, url_of

__all__ = ["DeleteResult", "LocalStore", "MemoryStore", "Object", "ObjectMeta", "ObjectStore", "open_store", "url_of"]
