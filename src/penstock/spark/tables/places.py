"""The object stores that a table can be in, by the schemes of their URLs."""

from __future__ import annotations

from penstock.errors import InvalidInput

OBJECT_STORES = ("s3", "gs", "az")
# Hadoop's names of object stores, and ours. None of them renames a directory in one step.
_OTHER_NAMES = {"s3a": "s3", "s3n": "s3", "gcs": "gs"} | dict.fromkeys(
    ("abfs", "abfss", "wasb", "wasbs", "azure"), "az"
)


def scheme_of(url: str) -> str | None:
    """The scheme of a table's URL; None for a path. Raises `InvalidInput` for Hadoop's name of an object store.

    >>> scheme_of("s3://bucket/table"), scheme_of("/data/table")
    ('s3', None)
    """
    scheme, separator, _ = url.partition("://")
    if not separator:
        return None
    if scheme in _OTHER_NAMES:
        raise InvalidInput(f"write {_OTHER_NAMES[scheme]}:// for {scheme}://: Penstock reaches object stores by itself")
    return scheme
