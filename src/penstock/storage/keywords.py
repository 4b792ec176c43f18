"""The two keywords that a store of others may leave out: how to pass them to any store."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from penstock.storage.object_store import Data, Object, ObjectStore, Reserve, check_size


def get_at_most(store: ObjectStore, path: str, max_bytes: int) -> Object:
    """Read a whole object of at most `max_bytes`. Raises `CorruptData` for a larger one, and what `get` raises.

    A store that takes `max_bytes` does not read the larger one. Of another store it is read, and then refused.

    >>> from penstock.storage import MemoryStore
    >>> store = MemoryStore("doctest-get-at-most")
    >>> version = store.put("greeting", b"hello")
    >>> get_at_most(store, "greeting", 5).data
    b'hello'
    """
    get: Callable[..., Object] = store.get
    if _takes(_function(get), "max_bytes"):
        return get(path, max_bytes=max_bytes)
    found = get(path)
    check_size(path, str(getattr(store, "url", type(store).__name__)), len(found.data), max_bytes)
    return found


def replace_with_reserve(
    store: ObjectStore, path: str, data: Data, version: str | None, reserve: Reserve | None
) -> str:
    """Write over a version, or with None where there is no object, and say what the write has to do with the reserve.

    Raises what `put_if_match` and `put_if_absent` raise. Only a local disk has a reserve; to other stores this is an
    ordinary conditional write.
    """
    write: Callable[..., str] = store.put_if_absent if version is None else store.put_if_match
    given = (path, data) if version is None else (path, data, version)
    return write(*given, reserve=reserve) if _takes(_function(write), "reserve") else write(*given)


def _function(method: Callable[..., Any]) -> Callable[..., Any]:
    return getattr(method, "__func__", method)  # one for all stores of a class, so that the cache stays small


@lru_cache(maxsize=256)
def _takes(function: Callable[..., Any], keyword: str) -> bool:
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return False  # written in another language, and silent about its arguments
    return keyword in parameters or any(one.kind is one.VAR_KEYWORD for one in parameters.values())
