"""The local disk as a first-class object store: durable, atomic, with compare-and-set across processes.

`docs/design/local-disk.md` has the invariants and the order of writes.
"""

from penstock.storage.local.store import LocalStore

__all__ = ["LocalStore"]
