"""Which paths a store accepts. They come from manifests, which anyone with the bucket could have written."""

from __future__ import annotations

import re
from collections.abc import Iterable

from penstock.errors import InvalidInput

_ORDINARY = re.compile(
    r"\.?[\w-][\w.=-]*(?:/\.?[\w-][\w.=-]*)*", re.ASCII
)  # nothing that `_problem` looks for but length
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_UNFIT = re.compile("[\\\\\ufffe\uffff]")  # Azure takes a backslash for a slash; the other two have no place in XML
_MAX_BYTES = 1024  # bytes of UTF-8: the shortest limit among the stores, S3's and GCS's


def check_path(path: str, kind: str = "path") -> str:
    """Return the path if it names an object inside the store, else raise `InvalidInput`.

    >>> check_path("ingest/manifest")
    'ingest/manifest'
    >>> check_path("../secrets")
    Traceback (most recent call last):
        ...
    penstock.errors.InvalidInput: path '../secrets' is refused: it has a '..' segment
    """
    if not is_path(path):
        raise InvalidInput(f"{kind} {path!r} is refused: {_problem(path)}")
    return path


def is_path(path: object) -> bool:
    """Say whether a path is one that `check_path` accepts."""
    is_ordinary = isinstance(path, str) and len(path) <= _MAX_BYTES and _ORDINARY.fullmatch(path)
    return bool(is_ordinary) or _problem(path) is None


def check_prefix(prefix: str) -> str:
    """Return the prefix without a closing slash; an empty one stands for the whole store.

    >>> check_prefix("ingest/"), check_prefix("")
    ('ingest', '')
    """
    if prefix == "":
        return ""
    if str(prefix).endswith("/") and prefix != "/":
        prefix = prefix[:-1]
    return check_path(prefix, "prefix")


def check_paths(paths: Iterable[str]) -> list[str]:
    """Return the paths as a list, all checked before anything is done to the first. A lone path is a list of one."""
    if isinstance(paths, str):
        return [check_path(paths)]
    if not isinstance(paths, Iterable):
        raise InvalidInput(f"paths must be a list of paths, not {type(paths).__name__}")
    return [check_path(path) for path in paths]


def is_below(path: str, prefix: str) -> bool:
    """Say whether a path lies below a checked prefix, by whole segments.

    >>> is_below("a/b", "a"), is_below("ab/c", "a"), is_below("a", "a")
    (True, False, False)
    """
    return not prefix or path.startswith(prefix + "/")


def _problem(path: object) -> str | None:
    if not isinstance(path, str):
        return f"it is not a string but {type(path).__name__}"
    if not path:
        return "it is empty"
    if path.startswith("/"):
        return "it is absolute"
    if _CONTROL.search(path):
        return "it has a control character"
    if _UNFIT.search(path):
        return "it has a backslash or another character that some stores cannot keep"
    try:
        encoded = path.encode()
    except UnicodeEncodeError:
        return "it cannot be written as UTF-8"
    if len(encoded) > _MAX_BYTES:
        return f"it is longer than {_MAX_BYTES} bytes"
    for segment in path.split("/"):
        if segment in {"..", "."}:
            return f"it has a '{segment}' segment"
        if not segment:
            return "it has an empty segment"
    return None
