"""S3, GCS and Azure, through `obstore`. Thin: retries, signing and protocols are the engine's below."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

import obstore
from obstore import exceptions as engine
from obstore.store import AzureStore, GCSStore, S3Store

from penstock import metrics
from penstock.core import get_logger, printable
from penstock.errors import AlreadyExists, Conflict, InvalidInput, NotFound, OutcomeUnknown, StorageError
from penstock.storage.measuring import measured, measured_listing
from penstock.storage.object_store import (
    Data,
    DeleteResult,
    Object,
    ObjectMeta,
    PathRange,
    as_data,
    as_version,
    check_size,
)
from penstock.storage.paths import check_path, check_paths, check_prefix
from penstock.storage.redaction import is_endpoint, redact, secrets_of, show_options

if TYPE_CHECKING:
    from obstore import PutMode, PutResult

Answer = TypeVar("Answer")

_log = get_logger(__name__)

_CLIENTS: dict[str, Callable[..., S3Store | GCSStore | AzureStore]] = {
    "s3": S3Store,
    "gs": GCSStore,
    "az": AzureStore,
}
_CLIENT_OPTIONS = frozenset({"default_headers", "root_certificate"})  # no words: they cannot be configuration
_ENTITY_TAG = re.compile(r'(W/)?"(?!\*")[!#-~]+"')
_GENERATION = re.compile(r"\d+")
_DURATIONS = frozenset({"connect_timeout", "pool_idle_timeout", "read_timeout", "timeout", "retry_timeout"})
_MAX_RETRIES = 10
_RETRY_TIMEOUT = 60.0
_TOGETHER = 1000
_ENGINE_DETAILS = "Debug source:"
_MAX_CAUSE_CHARACTERS = 4_000

# Refused before anything was done: these are the only failures of a write that prove it did not happen.
_REFUSED = (
    engine.PermissionDeniedError,
    engine.UnauthenticatedError,
    engine.NotSupportedError,
    engine.InvalidPathError,
    engine.UnknownConfigurationKeyError,
)
_MISSING_BUCKET = re.compile("<Code>(NoSuchBucket|ContainerNotFound)</Code>")  # not in a name, only as the answer

_engine_started_in: int | None = None


class CloudStore:
    """A bucket, or a part of one below a prefix.

    Reads, listings, deletes and plain puts are retried with back-off until a deadline. Conditional writes are tried
    once: a retry after a lost reply would report one's own success as a conflict.
    """

    def __init__(self, scheme: str, bucket: str, prefix: str, options: Mapping[str, object]) -> None:
        self._scheme, self._bucket, self._prefix = scheme, bucket, prefix
        self._options = dict(options)
        self.url = f"{scheme}://{bucket}" + (f"/{prefix}" if prefix else "")
        retries, deadline = self._retry_options()
        self._check_endpoints()
        self._patient = self._client(retries, deadline)
        self._once = self._client(0, deadline)

    def __repr__(self) -> str:
        options = show_options(self._options)
        return f"CloudStore({self.url}{', ' + options if options else ''})"

    def __reduce__(self) -> tuple[type[CloudStore], tuple[str, str, str, dict[str, object]]]:
        return CloudStore, (self._scheme, self._bucket, self._prefix, self._options)

    def check_path(self, path: str) -> None:
        """Raise `InvalidInput` unless an object can have this path: together with the prefix it is the object's key."""
        check_path(f"{self._prefix}/{path}" if self._prefix else path)

    @measured
    def get(self, path: str, *, max_bytes: int | None = None) -> Object:
        """Read a whole object. Raises `NotFound` if there is none, `CorruptData` if it is above `max_bytes`."""
        check_path(path)

        def read() -> Object:
            answer = obstore.get(self._patient, path)
            check_size(path, self.url, answer.meta["size"], max_bytes)  # the body has not been read yet
            return Object(bytes(answer.bytes()), self._version(answer.meta), answer.meta["last_modified"])

        return self._ask(f"read {path!r}", read)

    @measured
    def head(self, path: str) -> ObjectMeta:
        """Describe an object. Raises `NotFound` if there is none."""
        check_path(path)
        return self._ask(f"look at {path!r}", lambda: self._meta(obstore.head(self._patient, path)))

    @measured
    def put(self, path: str, data: Data) -> str:
        """Replace an object atomically, and return its new version."""
        return self._put(path, data, lambda content: obstore.put(self._patient, path, content))

    @measured
    def put_if_absent(self, path: str, data: Data) -> str:
        """Create an object, and return its version. Raises `AlreadyExists` if there is one."""
        try:
            return self._put(path, data, lambda content: self._put_once(path, content, "create"))
        except Conflict as error:
            raise AlreadyExists(str(error)) from error

    @measured
    def put_if_match(self, path: str, data: Data, version: str) -> str:
        """Replace the object that is at `version`. Raises `Conflict` if it is not any more, or is gone."""
        lost = f"the object {path!r} in {self.url} is not at version {as_version(version)!r} any more"
        check_path(path)
        mode: PutMode
        if self._scheme == "gs":
            mode, usable = {"version": version}, _GENERATION.fullmatch(version)
        else:
            mode, usable = {"e_tag": _quoted(version)}, _ENTITY_TAG.fullmatch(_quoted(version))
        if not usable:
            raise Conflict(lost)  # none of ours, so nothing is at it; and in a header it might mean "any"
        try:
            return self._put(path, data, lambda content: self._put_once(path, content, mode))
        except (NotFound, AlreadyExists, Conflict) as error:
            raise Conflict(lost) from error

    @measured_listing
    def list_objects(self, prefix: str = "") -> Iterator[ObjectMeta]:
        """List every object below the prefix, by whole path segments, in no promised order."""
        return self._list(check_prefix(prefix), "")

    @measured_listing
    def list_ranges(self, prefix: str, ranges: Sequence[PathRange]) -> Iterator[ObjectMeta]:
        """List the objects below the prefix whose paths are in one of the ranges. It asks for no others."""
        prefix = check_prefix(prefix)
        for after, before in ranges:
            for meta in self._list(prefix, after):
                if not before or meta.path < before:
                    yield meta
                elif self._lists_in_order:
                    break

    @property
    def _lists_in_order(self) -> bool:
        """Whether listings come in the order of paths. Those of S3's directory buckets do not."""
        return not self._bucket.endswith("--x-s3")

    @measured
    def delete(self, paths: Iterable[str]) -> list[DeleteResult]:
        """Delete objects; one result for each path. Deleting what is gone is a success."""
        checked = check_paths(paths)
        results: list[DeleteResult] = []
        for start in range(0, len(checked), _TOGETHER):
            results += self._delete(checked[start : start + _TOGETHER])
        return results

    def _put(self, path: str, data: Data, write: Callable[[bytes | memoryview], PutResult]) -> str:
        check_path(path)
        content = as_data(data)
        answer = self._ask(f"write {path!r}", lambda: write(content), unknown=True)
        metrics.storage_bytes_written.labels(self.url).inc(len(content))
        return self._version(answer)

    def _put_once(self, path: str, content: bytes | memoryview, mode: PutMode) -> PutResult:
        return obstore.put(self._once, path, content, mode=mode, use_multipart=False)

    def _list(self, prefix: str, after: str) -> Iterator[ObjectMeta]:
        what = f"list {prefix!r}"
        pages = self._ask(
            what,
            lambda: iter(obstore.list(self._patient, prefix or None, offset=after or None, chunk_size=_TOGETHER)),
        )
        while (page := self._ask(what, lambda: next(pages, None))) is not None:
            yield from map(self._meta, page)

    def _delete(self, paths: list[str]) -> list[DeleteResult]:
        try:
            self._ask(f"delete {paths[0]!r}", lambda: obstore.delete(self._patient, paths))
        except StorageError as error:
            if len(paths) == 1:
                return [DeleteResult(paths[0], None if type(error) is NotFound else error)]
            # One of them failed, and the error does not tell which. Some stores fail for objects that are gone.
            _log.debug("deleting %d objects one by one, after together failed: %s", len(paths), error)
            return [result for path in paths for result in self._delete([path])]
        return [DeleteResult(path) for path in paths]

    def _version(self, answer: Mapping[str, Any]) -> str:
        # GCS compares generations, the others entity tags; each has its own condition on a write. A listing of GCS has
        # no generations: the tag it shows is never taken for one.
        if self._scheme == "gs" and answer.get("version"):
            return str(answer["version"])
        if not answer.get("e_tag"):
            raise StorageError(f"{self.url} gives its objects no version, so nothing could be replaced safely there")
        return _quoted(str(answer["e_tag"]))

    def _meta(self, meta: Mapping[str, Any]) -> ObjectMeta:
        return ObjectMeta(meta["path"], meta["size"], meta["last_modified"], self._version(meta))

    def _ask(self, what: str, request: Callable[[], Answer], *, unknown: bool = False) -> Answer:
        """Make a request. Whatever goes wrong becomes one of our errors, with no credential in it."""
        _check_process()
        try:
            return request()
        except (engine.BaseError, OSError, ValueError) as error:
            failure, cause = self._failure(error, what, unknown=unknown)
        except BaseException as error:
            if type(error).__name__ != "PanicException":  # how the engine's own bugs arrive
                raise
            failure, cause = self._failure(error, what, unknown=unknown)
        # Raised here and not above, so that a text with a credential in it is not even kept as its context.
        raise failure from cause

    def _failure(self, error: BaseException, what: str, *, unknown: bool) -> tuple[StorageError, BaseException | None]:
        whole = str(error)
        secrets = secrets_of(self._options)
        text = whole.partition(_ENGINE_DETAILS)[0].strip()
        message = f"could not {what} in {self.url}: {printable(redact(text, secrets))}"
        kind = _kind(error, whole, unknown=unknown)
        if kind is OutcomeUnknown:
            message += "; it may have happened, and may still happen: read it again, and decide by what you find"
        # A traceback shows the cause as it is: one that is long, unfit for a terminal or holds a secret is left out.
        # (Below the text the engine repeats it, with its control characters escaped.)
        is_fit = len(whole) <= _MAX_CAUSE_CHARACTERS and text.isprintable() and redact(whole, secrets) == whole
        return kind(message), error if is_fit else None

    def _client(self, retries: int, deadline: timedelta) -> S3Store | GCSStore | AzureStore:
        given = {name: value for name, value in self._options.items() if name not in {"max_retries", "retry_timeout"}}
        # Among the configuration, where they add to the environment's; as client options they would replace it.
        config = {name: _in_words(name, value) for name, value in given.items() if name not in _CLIENT_OPTIONS}
        client = {name: value for name, value in given.items() if name in _CLIENT_OPTIONS}
        make = partial(_CLIENTS[self._scheme], self._bucket, prefix=self._prefix or None)
        try:
            return make(
                config=config,
                client_options=client or None,
                retry_config={"max_retries": retries, "retry_timeout": deadline},
            )
        except (engine.BaseError, ValueError, TypeError) as error:
            text = str(error).partition(_ENGINE_DETAILS)[0].strip()
            problem = printable(redact(text, secrets_of(self._options)))
        raise InvalidInput(f"{self.url} cannot be opened with these options: {problem}")

    def _check_endpoints(self) -> None:
        names = [name.lower() for name in (*self._options, *os.environ)]
        allow_http = any(name.endswith(("allow_http", "use_emulator")) for name in names)
        for name, value in self._options.items():
            if is_endpoint(name):
                _check_endpoint(name, value, allow_http=allow_http)

    def _retry_options(self) -> tuple[int, timedelta]:
        given = self._options.get("max_retries", _MAX_RETRIES)
        if not re.fullmatch(r"\d{1,6}", str(given)):
            raise InvalidInput(f"max_retries must be a whole number from 0, not {given!r}")
        deadline = self._options.get("retry_timeout", _RETRY_TIMEOUT)
        seconds = _seconds("retry_timeout", deadline)
        if seconds is None:
            raise InvalidInput(f"retry_timeout must be seconds above 0, not {deadline!r}")
        return int(str(given)), seconds


def _kind(error: BaseException, text: str, *, unknown: bool) -> type[StorageError]:
    if _MISSING_BUCKET.search(text):
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


def _quoted(tag: str) -> str:
    """An entity tag with its quotes, which Azure leaves out in a listing."""
    return tag if tag.endswith('"') else f'"{tag}"'


def _seconds(name: str, value: object) -> timedelta | None:
    if isinstance(value, timedelta):
        return value
    try:
        seconds = float(str(value))
    except ValueError:
        return None
    if not 0 < seconds < 1e9:
        raise InvalidInput(f"{name} must be seconds above 0, not {value!r}")
    return timedelta(seconds=seconds)


def _in_words(name: str, value: object) -> object:
    """Our times are seconds, the engine's are words; its own ("30s", "2 minutes") pass as they are."""
    seconds = _seconds(name, value) if name in _DURATIONS else None
    return value if seconds is None else f"{seconds // timedelta(milliseconds=1)}ms"


def _check_endpoint(name: str, value: object, *, allow_http: bool) -> None:
    problem = f"{name} must be a URL such as http://127.0.0.1:9000"
    if not isinstance(value, str) or re.search(r"\s", value):
        raise InvalidInput(problem)
    try:
        parts = urlsplit(value)
        usable = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable:
        raise InvalidInput(problem)
    if parts.scheme == "http" and not allow_http:
        raise InvalidInput(f"{name} is an http:// URL, which is not encrypted: if that is meant, give allow_http=True")


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
