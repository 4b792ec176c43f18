"""S3, GCS and Azure, through `obstore`. Thin: retries, signing and protocols are the engine's below."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

import obstore
from obstore import exceptions as engine
from obstore.store import AzureStore, GCSStore, S3Store

from penstock import metrics
from penstock.errors import AlreadyExists, Conflict, InvalidInput, NotFound, OutcomeUnknown, StorageError
from penstock.storage.measuring import measured
from penstock.storage.object_store import Data, DeleteResult, Object, ObjectMeta, as_data, as_version
from penstock.storage.paths import check_path, check_paths, check_prefix
from penstock.storage.redaction import redact, secrets_of, show_options

if TYPE_CHECKING:
    from obstore import PutMode

log = logging.getLogger(__name__)

_CLIENTS: dict[str, Callable[..., S3Store | GCSStore | AzureStore]] = {
    "s3": S3Store,
    "gs": GCSStore,
    "az": AzureStore,
}
_CLIENT_OPTIONS = frozenset(
    [
        "allow_http",
        "allow_invalid_certificates",
        "connect_timeout",
        "default_content_type",
        "default_headers",
        "pool_idle_timeout",
        "pool_max_idle_per_host",
        "proxy_url",
        "proxy_ca_certificate",
        "proxy_excludes",
        "read_timeout",
        "root_certificate",
        "timeout",
        "user_agent",
    ]
)
_DURATIONS = frozenset({"connect_timeout", "pool_idle_timeout", "read_timeout", "timeout", "retry_timeout"})
_MAX_RETRIES = 10
_RETRY_TIMEOUT = 60.0
_DELETE_TOGETHER = 1000

# Refused before anything was done: these are the only failures of a write that prove it did not happen.
_REFUSED = (
    engine.PermissionDeniedError,
    engine.UnauthenticatedError,
    engine.NotSupportedError,
    engine.InvalidPathError,
    engine.UnknownConfigurationKeyError,
)
_MISSING_BUCKET = ("NoSuchBucket", "ContainerNotFound", "The specified bucket does not exist")

_engine_started_in: int | None = None


class CloudStore:
    """A bucket, or a part of one below a prefix.

    Reads, listings, deletes and plain puts are retried with back-off until a deadline. Conditional writes are tried
    once: a retry after a lost reply would report one's own success as a conflict.
    """

    def __init__(self, scheme: str, bucket: str, prefix: str, options: Mapping[str, object]) -> None:
        self._scheme, self._bucket, self._prefix = scheme, bucket, prefix
        self._options = dict(options)
        self._url = f"{scheme}://{bucket}" + (f"/{prefix}" if prefix else "")
        retries, deadline = self._retry_options()
        self._patient = self._client(retries, deadline)
        self._once = self._client(0, deadline)

    @property
    def url(self) -> str:
        """Where the store is, without credentials."""
        return self._url

    def __repr__(self) -> str:
        options = show_options(self._options)
        return f"CloudStore({self._url}{', ' + options if options else ''})"

    def __reduce__(self) -> tuple[type[CloudStore], tuple[str, str, str, dict[str, object]]]:
        return CloudStore, (self._scheme, self._bucket, self._prefix, self._options)

    @measured
    def get(self, path: str) -> Object:
        """Read a whole object. Raises `NotFound` if there is none."""
        check_path(path)
        with self._asking("read", path):
            answer = obstore.get(self._patient, path)
            data = bytes(answer.bytes())
            meta = answer.meta
        return Object(data, self._version(meta), meta["last_modified"])

    @measured
    def head(self, path: str) -> ObjectMeta:
        """Describe an object. Raises `NotFound` if there is none."""
        check_path(path)
        with self._asking("look at", path):
            return self._meta(obstore.head(self._patient, path))

    @measured
    def put(self, path: str, data: Data) -> str:
        """Replace an object atomically, and return its new version."""
        check_path(path)
        content = as_data(data)
        with self._asking("write", path, unknown=True):
            return self._written(content, obstore.put(self._patient, path, content))

    @measured
    def put_if_absent(self, path: str, data: Data) -> str:
        """Create an object, and return its version. Raises `AlreadyExists` if there is one."""
        try:
            return self._put_once(path, data, "create")
        except Conflict as error:
            raise AlreadyExists(str(error)) from error

    @measured
    def put_if_match(self, path: str, data: Data, version: str) -> str:
        """Replace the object that is at `version`. Raises `Conflict` if it is not any more, or is gone."""
        as_version(version)
        mode: PutMode = {"version": version} if self._scheme == "gs" else {"e_tag": version}
        try:
            return self._put_once(path, data, mode)
        except (NotFound, AlreadyExists) as error:
            raise Conflict(f"the object {path!r} in {self._url} is not at version {version} any more") from error

    @measured
    def list_objects(self, prefix: str = "") -> Iterator[ObjectMeta]:
        """List every object below the prefix, by whole path segments, in no promised order."""
        return self._list(check_prefix(prefix))

    @measured
    def delete(self, paths: Iterable[str]) -> list[DeleteResult]:
        """Delete objects; one result for each path. Deleting what is gone is a success."""
        checked = check_paths(paths)
        results: list[DeleteResult] = []
        for start in range(0, len(checked), _DELETE_TOGETHER):
            results += self._delete(checked[start : start + _DELETE_TOGETHER])
        return results

    def _put_once(self, path: str, data: Data, mode: PutMode) -> str:
        check_path(path)
        content = as_data(data)
        with self._asking("write", path, unknown=True):
            return self._written(content, obstore.put(self._once, path, content, mode=mode, use_multipart=False))

    def _written(self, content: bytes | memoryview, answer: Mapping[str, Any]) -> str:
        metrics.storage_bytes_written.labels(self._url).inc(len(content))
        return self._version(answer)

    def _list(self, prefix: str) -> Iterator[ObjectMeta]:
        with self._asking("list", prefix):
            pages = iter(obstore.list(self._patient, prefix or None, chunk_size=_DELETE_TOGETHER))
        while True:
            with self._asking("list", prefix):
                page = next(pages, None)
            if page is None:
                return
            yield from map(self._meta, page)

    def _delete(self, paths: list[str]) -> list[DeleteResult]:
        try:
            with self._asking("delete", paths[0]):
                obstore.delete(self._patient, paths)
        except StorageError as error:
            if len(paths) == 1:
                return [DeleteResult(paths[0], None if type(error) is NotFound else error)]
            # One of them failed, and it is not said which. Some stores fail for what is gone already.
            log.debug("deleting %d objects one by one, after together failed: %s", len(paths), error)
            return [result for path in paths for result in self._delete([path])]
        return [DeleteResult(path) for path in paths]

    def _version(self, answer: Mapping[str, Any]) -> str:
        # GCS compares generations, the others entity tags; each has its own condition on a write.
        order = ("version", "e_tag") if self._scheme == "gs" else ("e_tag", "version")
        version = next((answer[name] for name in order if answer.get(name)), None)
        if version is None:
            raise StorageError(f"{self._url} gives its objects no version, so nothing could be replaced safely there")
        return str(version)

    def _meta(self, meta: Mapping[str, Any]) -> ObjectMeta:
        return ObjectMeta(meta["path"], meta["size"], meta["last_modified"], self._version(meta))

    @contextmanager
    def _asking(self, what: str, path: str, *, unknown: bool = False) -> Iterator[None]:
        """Around a request: whatever goes wrong becomes one of ours, with no credential in it."""
        _check_process()
        failure: StorageError | None = None
        cause: BaseException | None = None
        try:
            yield
        except (engine.BaseError, OSError, ValueError) as error:
            failure, cause = self._failure(error, f"could not {what} {path!r} in {self._url}", unknown=unknown)
        if failure:
            # Raised here and not above, so that a text with a credential in it is not chained as its context.
            raise failure from cause

    def _failure(self, error: Exception, what: str, *, unknown: bool) -> tuple[StorageError, BaseException | None]:
        whole = str(error)
        secrets = secrets_of(self._options)
        message = redact(f"{what}: {whole.partition('Debug source:')[0].strip()}", secrets)
        kind = _kind(error, whole, unknown=unknown)
        if kind is OutcomeUnknown:
            message += "; it may have happened, and may still happen: read it again, and decide by what you find"
        return kind(message), error if redact(whole, secrets) == whole else None

    def _client(self, retries: int, deadline: timedelta) -> S3Store | GCSStore | AzureStore:
        given = {name: value for name, value in self._options.items() if name not in {"max_retries", "retry_timeout"}}
        client = {
            name: _seconds(name, value) if name in _DURATIONS else value
            for name, value in given.items()
            if name in _CLIENT_OPTIONS
        }
        config = {name: value for name, value in given.items() if name not in _CLIENT_OPTIONS}
        make = partial(_CLIENTS[self._scheme], self._bucket, prefix=self._prefix or None)
        problem: str | None = None
        try:
            return make(
                config=config,
                client_options=client,
                retry_config={"max_retries": retries, "retry_timeout": deadline},
            )
        except (engine.BaseError, ValueError, TypeError) as error:
            text = str(error).partition("Debug source:")[0].strip()
            problem = redact(text, secrets_of(self._options))
        raise InvalidInput(f"{self._url} cannot be opened with these options: {problem}")

    def _retry_options(self) -> tuple[int, timedelta]:
        given = self._options.get("max_retries", _MAX_RETRIES)
        try:
            retries = int(str(given))
        except ValueError:
            retries = -1
        if retries < 0:
            raise InvalidInput(f"max_retries must be a whole number from 0, not {given!r}")
        deadline = _seconds("retry_timeout", self._options.get("retry_timeout", _RETRY_TIMEOUT))
        if not isinstance(deadline, timedelta):
            raise InvalidInput(f"retry_timeout must be seconds, not {deadline!r}")
        return retries, deadline


def _kind(error: Exception, text: str, *, unknown: bool) -> type[StorageError]:
    if any(sign in text for sign in _MISSING_BUCKET):
        return StorageError
    if isinstance(error, FileNotFoundError | engine.NotFoundError):
        return NotFound
    if isinstance(error, engine.AlreadyExistsError):
        return AlreadyExists
    if isinstance(error, engine.PreconditionError):
        return Conflict
    if isinstance(error, (*_REFUSED, PermissionError, ValueError)):
        return StorageError
    return OutcomeUnknown if unknown else StorageError


def _seconds(name: str, value: object) -> timedelta | str:
    """Times are seconds; the engine's own words ("30s", "2 minutes") pass as they are."""
    if isinstance(value, timedelta):
        return value
    try:
        seconds = float(str(value))
    except ValueError:
        return str(value)
    if not 0 < seconds < 1e9:
        raise InvalidInput(f"{name} must be seconds above 0, not {value!r}")
    return timedelta(seconds=seconds)


def _check_process() -> None:
    """Raise in a forked child, where the engine's threads do not exist and a request would hang for ever."""
    global _engine_started_in
    if _engine_started_in is None:
        _engine_started_in = os.getpid()
    elif _engine_started_in != os.getpid():
        raise StorageError(
            "object stores were used in this process's parent before it was forked, and their threads do not exist "
            "here: start child processes with multiprocessing's 'spawn' or 'forkserver', or fork before the first use"
        )
