"""`open_store`: from a URL to a store."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from urllib.parse import unquote, urlsplit

from penstock.core import printable
from penstock.errors import InvalidInput
from penstock.storage.local import LocalStore
from penstock.storage.local.permissions import DEFAULT_PERMISSIONS, as_permissions
from penstock.storage.memory import MemoryStore
from penstock.storage.object_store import ObjectStore
from penstock.storage.paths import check_path, check_prefix
from penstock.storage.redaction import redact, secrets_of

_CLOUDS = ("s3", "gs", "az")
_SCHEMES = "memory://name, file:///dir (or a bare path), s3://bucket/prefix, gs://bucket/prefix, az://container/prefix"
_METHODS = ("get", "head", "put", "put_if_absent", "put_if_match", "list_objects", "delete")
_TRUE, _FALSE = ("true", "1", "yes", "on"), ("false", "0", "no", "off")


def open_store(where: str | os.PathLike[str] | ObjectStore, **options: object) -> ObjectStore:
    """Open the store at a URL; a store given as one is returned as it is.

    `memory://name` is shared by name within the process; `file:///dir` or a bare path is the local disk, with the
    options `sync` (default true) and `mode` (permission bits of its files, default 0o640); `s3://`, `gs://` and
    `az://` take `obstore`'s configuration as options (`endpoint`, `region`, `allow_http`, ...) or from the environment,
    and `max_retries` and `retry_timeout` (seconds).

    Raises `InvalidInput` for a URL or an option that it does not know. Options travel with a pickled store,
    credentials among them: prefer the environment or instance roles.

    >>> open_store("memory://events").url
    'memory://events'
    """
    if isinstance(where, os.PathLike):
        return _open_local(os.fsdecode(where), options)
    if not isinstance(where, str):
        missing = [name for name in _METHODS if not callable(getattr(where, name, None))]
        if missing:
            kind = type(where).__name__
            raise InvalidInput(f"a store is a URL, a path or an ObjectStore, not {kind}: it has no {missing[0]}")
        if options:
            raise InvalidInput(f"options ({', '.join(sorted(options))}) go with a URL, not with a store that is open")
        return where
    scheme, separator, rest = where.partition("://")
    if not separator:
        return _open_local(_bare_path(where), options)
    if scheme == "memory":
        _refuse_unknown(options, ())
        return MemoryStore(rest.rstrip("/"))
    if scheme == "file":
        return _open_local(_file_path(where), options)
    if scheme in _CLOUDS:
        return _open_cloud(scheme, rest, options)
    raise InvalidInput(f"{printable(redact(scheme, secrets_of(options)), 100)}:// is no place for a store: {_SCHEMES}")


def local_path(where: str | os.PathLike[str]) -> str:
    """The path on this host's disk that a bare path or a `file://` URL means.

    Raises `InvalidInput` for any other place.
    """
    if not isinstance(where, str | os.PathLike):
        raise InvalidInput(f"a place on this host's disk is a path or a file:// URL, not {type(where).__name__}")
    if isinstance(where, os.PathLike):
        path = os.fsdecode(where)
    elif where.startswith("file://"):
        path = _file_path(where)
    else:
        path = "" if "://" in where else _bare_path(where)
    if not _is_local_path(path):
        raise InvalidInput(f"{where!r} is no place on this host's disk: it takes a path, or a file:// URL")
    return os.path.abspath(os.path.expanduser(path))


def url_of(store: ObjectStore) -> str:
    """Where a store is, without credentials; the name of its class for one that does not say."""
    return str(getattr(store, "url", type(store).__name__))


def check_path_in(store: ObjectStore, path: str) -> None:
    """Raise `InvalidInput` unless a store could keep an object at a path. Nothing is written.

    A store with limits of its own says so by a method `check_path(path)`; of others the limits of all stores count.
    """
    check = getattr(store, "check_path", check_path)
    check(path)


def _open_local(path: str, options: Mapping[str, object]) -> LocalStore:
    if not _is_local_path(path):
        raise InvalidInput(f"{path!r} is no place for a store: {_SCHEMES}")
    _refuse_unknown(options, ("sync", "mode"))
    mode = as_permissions(options.get("mode", DEFAULT_PERMISSIONS.file_mode)).file_mode
    return LocalStore(os.path.expanduser(path), sync=_as_bool("sync", options.get("sync", True)), mode=mode)


def _open_cloud(scheme: str, rest: str, options: Mapping[str, object]) -> ObjectStore:
    # Here and not above: a pipeline on local disk need not load the engine of the clouds.
    from penstock.storage.cloud import CloudStore

    bucket, _, prefix = rest.partition("/")
    # None of these says more of the URL than its scheme: the rest may be a credential in the wrong place.
    if "?" in rest or "#" in rest:
        raise InvalidInput(f"this {scheme}:// URL has a query or a fragment: give settings as options")
    if not re.fullmatch(r"[\w.-]+", bucket):
        raise InvalidInput(
            f"this {scheme}:// URL does not begin with the name of a bucket; credentials, should they be in it, are "
            "better given in the environment or as options"
        )
    return CloudStore(scheme, bucket, check_prefix(prefix), options)


def _is_local_path(path: str) -> bool:
    """Whether the system can have a file of this name: not with a NUL, nor with what cannot be encoded."""
    try:
        return bool(path) and "\0" not in path and bool(os.fsencode(path))
    except UnicodeEncodeError:
        return False


def _bare_path(where: str) -> str:
    scheme, separator, rest = where.partition(":")
    if separator and scheme == "file":  # as Java writes it: file:/dir
        return unquote(rest, errors="surrogateescape")
    if separator and scheme in {"memory", *_CLOUDS}:
        raise InvalidInput(f"this {scheme}: URL lacks its two slashes: {_SCHEMES}")
    return where


def _file_path(where: str) -> str:
    parts = urlsplit(where)
    if parts.netloc not in {"", "localhost"}:
        raise InvalidInput("this file:// URL names a host; those of this host have three slashes: file:///dir")
    if parts.query or parts.fragment:
        raise InvalidInput(f"the file URL file://{parts.path} has a query or fragment; write ? and # as %3F and %23")
    return unquote(parts.path, errors="surrogateescape")


def _refuse_unknown(options: Mapping[str, object], known: tuple[str, ...]) -> None:
    unknown = sorted(set(options) - set(known))
    if unknown:
        allowed = ", ".join(known) or "none"
        raise InvalidInput(f"unknown option {unknown[0]!r}: the options of this kind of store are: {allowed}")


def _as_bool(name: str, value: object) -> bool:
    if isinstance(value, bool):
        return value
    word = str(value).lower()
    if word in _TRUE or word in _FALSE:
        return word in _TRUE
    raise InvalidInput(f"{name} must be true or false, not {value!r}")
