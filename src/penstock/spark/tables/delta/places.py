"""Where a Delta table can be, and Penstock's options of a store as those of delta-rs."""

from __future__ import annotations

import os
from collections.abc import Mapping

from penstock.errors import AlreadyExists, InvalidInput
from penstock.spark.tables.places import OBJECT_STORES, scheme_of
from penstock.storage import LocalStore, ObjectStore, open_store

_SECONDS = frozenset({"connect_timeout", "pool_idle_timeout", "read_timeout", "timeout", "retry_timeout"})
_NOT_IN_DELTA = ("default_headers", "root_certificate")
_TRUE = ("true", "1", "yes", "on")


def open_place(url: str, options: Mapping[str, object]) -> ObjectStore:
    """Open the store whose root a table is. Raises `InvalidInput` for a place where no Delta table can be."""
    scheme = scheme_of(url)
    if scheme not in (*OBJECT_STORES, "file", None):
        raise InvalidInput(f"a Delta table is at a path, or at file://, s3://, gs:// or az://, not at {scheme}://")
    store = open_store(url, **options)
    if not isinstance(store, LocalStore):
        _check_safe(options)
    return store


def delta_options(options: Mapping[str, object]) -> dict[str, object]:
    """The options of a cloud's store as delta-rs takes them: the names are the same, and times have a unit."""
    unknown = next((name for name in options if name in _NOT_IN_DELTA), None)
    if unknown is not None:
        raise InvalidInput(f"the option {unknown} is not for Delta tables: delta-rs does not take it")
    return {name: _with_unit(name, value) for name, value in options.items()}


def check_conditional_put(store: ObjectStore, path: str) -> None:
    """Raise `InvalidInput` where a second put-if-absent succeeds: two drivers could commit the same version."""
    store.put_if_absent(path, b"")
    try:
        store.put_if_absent(path, b"")
    except AlreadyExists:
        return
    finally:
        store.delete([path])
    raise InvalidInput(
        f"{store.url} replaces objects where it was asked to create them (it does not know If-None-Match): two drivers "
        "could overwrite each other's commits. Use a store with conditional puts"
    )


def _check_safe(options: Mapping[str, object]) -> None:
    """Refuse settings by which delta-rs would commit without a condition."""
    given = {name.lower(): str(value).lower() for name, value in (*os.environ.items(), *options.items())}
    if any(given.get(name) in _TRUE for name in ("aws_s3_allow_unsafe_rename", "allow_unsafe_rename")):
        raise InvalidInput("AWS_S3_ALLOW_UNSAFE_RENAME lets two drivers overwrite each other's commits: unset it")
    for name in ("conditional_put", "aws_conditional_put"):
        if given.get(name, "etag") != "etag":
            raise InvalidInput(f"{name} must be 'etag' for a Delta table, whose commits are conditional puts")


def _with_unit(name: str, value: object) -> object:
    try:
        return f"{float(str(value)) * 1000:.0f}ms" if name in _SECONDS else value
    except ValueError:
        return value  # with one already, such as "2 minutes"
