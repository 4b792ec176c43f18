"""The configuration of producers and consumers. Invalid values are refused when it is created."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum

from penstock.buffer.format.batch import MAX_BATCH_BYTES, BatchFormat, Compression
from penstock.buffer.locations import MANIFEST_PATH
from penstock.buffer.places import check_apart
from penstock.core import as_word, check_seconds, check_whole
from penstock.errors import InvalidInput
from penstock.storage import check_path, check_prefix

DATA_PATH_PREFIX = "ingest"
FLUSH_SIZE_BYTES = 64 << 20
GC_GRACE_SECONDS = 600.0
MANIFEST_FORMAT_VARIABLE = "PENSTOCK_MANIFEST_FORMAT"
_MAX_SECONDS = 1e9  # thirty years: no thread can wait longer, and no date go back further
_MAX_NAME_CHARACTERS = 128
_ENCODED_BY_OPENDATA = frozenset('~%#*?[]{}\\^`"<>|')  # as the object_store crate does in every path
_MAX_BATCH_BYTES = (1 << 31) - 1  # of one Arrow column of payloads


class ManifestFormat(StrEnum):
    """The manifest of a new buffer: version 2, or version 1, which is OpenData's."""

    NATIVE = "native"
    OPENDATA = "opendata"


def default_manifest_format() -> ManifestFormat:
    """What the environment variable `PENSTOCK_MANIFEST_FORMAT` asks for; `native` where it is not set.

    Raises `InvalidInput` naming the variable.
    """
    return as_word(MANIFEST_FORMAT_VARIABLE, ManifestFormat, os.environ.get(MANIFEST_FORMAT_VARIABLE, "native"))


@dataclass(frozen=True, slots=True)
class ProducerConfig:
    """How a producer batches, and where it writes. Times are seconds, sizes bytes.

    `format` is how data batches are written. None is `arrow`, but `opendata` on a manifest of version 1: OpenData's
    consumers read no other, and stop for good at the first that they cannot read.

    `manifest_format` is for a buffer that does not exist yet. Its default is read from the environment variable
    `PENSTOCK_MANIFEST_FORMAT` when the configuration is created, and is `native` where that is not set.

    Raises `InvalidInput` naming the field, the value and what is allowed.

    >>> ProducerConfig(flush_interval=-1)
    Traceback (most recent call last):
        ...
    penstock.errors.InvalidInput: flush_interval must be a number of seconds, 0 or more, not -1
    """

    data_path_prefix: str = DATA_PATH_PREFIX
    manifest_path: str = MANIFEST_PATH
    flush_interval: float = 0.1
    flush_size_bytes: int = FLUSH_SIZE_BYTES
    max_buffered_inputs: int = 1_000_000
    max_buffered_bytes: int = 256 << 20
    compression: str = Compression.NONE
    format: str | None = None
    manifest_format: str = field(default_factory=default_manifest_format)
    max_batch_bytes: int = MAX_BATCH_BYTES
    enqueue_deadline: float = 300.0

    def __post_init__(self) -> None:
        _check_places(self)
        object.__setattr__(self, "compression", as_word("compression", Compression, self.compression))
        if self.format is not None:
            object.__setattr__(self, "format", as_word("format", BatchFormat, self.format))
        check_seconds("flush_interval", self.flush_interval, zero=True)
        check_seconds("enqueue_deadline", self.enqueue_deadline)
        check_whole("flush_size_bytes", self.flush_size_bytes)
        check_whole("max_buffered_inputs", self.max_buffered_inputs)
        check_whole("max_buffered_bytes", self.max_buffered_bytes)
        check_whole("max_batch_bytes", self.max_batch_bytes, 1, _MAX_BATCH_BYTES)

    def batch_format(self, usual: BatchFormat) -> BatchFormat:
        """How batches are written: as `format` says, or else as is `usual` for the manifest's version."""
        return usual if self.format is None else BatchFormat(self.format)


@dataclass(frozen=True, slots=True)
class ConsumerConfig:
    """How a consumer reads, and how its collector deletes. Times are seconds, sizes bytes.

    `group` has its own place in the queue; `start` is where it begins if it is new: `earliest`, `latest`, or a sequence
    that is there. A manifest of version 1 has no groups but `default`. `manifest_format` is as in `ProducerConfig`.

    `enqueue_deadline` is the longest that any of the buffer's producers uses; a `gc_grace_period` below twice that is
    refused, for it would delete what can still be enqueued. Raises `InvalidInput` naming the field.

    Of all consumers of a buffer one collects in each `gc_interval`. One that is closed runs a cycle that is due by
    then, for `gc_at_close` seconds at most (0: none): a process that lives for less than an interval collects there.
    """

    manifest_path: str = MANIFEST_PATH
    data_path_prefix: str = DATA_PATH_PREFIX
    gc_interval: float = 300.0
    gc_grace_period: float = GC_GRACE_SECONDS
    gc: bool = True
    group: str = "default"
    start: str | int = "earliest"
    manifest_format: str = field(default_factory=default_manifest_format)
    max_batch_bytes: int = MAX_BATCH_BYTES
    enqueue_deadline: float = 300.0
    gc_at_close: float = 5.0

    def __post_init__(self) -> None:
        _check_places(self)
        check_seconds("gc_interval", self.gc_interval, most=_MAX_SECONDS)
        check_seconds("gc_at_close", self.gc_at_close, zero=True)
        check_seconds("gc_grace_period", self.gc_grace_period, most=_MAX_SECONDS)
        check_seconds("enqueue_deadline", self.enqueue_deadline)
        check_whole("max_batch_bytes", self.max_batch_bytes, 1, _MAX_BATCH_BYTES)
        if not isinstance(self.gc, bool):
            raise InvalidInput(f"gc must be True or False, not {self.gc!r}")
        if self.gc_grace_period < 2 * self.enqueue_deadline:
            raise InvalidInput(
                f"gc_grace_period must be at least twice enqueue_deadline ({self.enqueue_deadline} s), for a producer "
                f"may still enqueue what it wrote, not {self.gc_grace_period}"
            )
        check_group(self.group)
        check_start(self.start)


def check_group(name: object) -> str:
    """Raises `InvalidInput` for what cannot be a group's name."""
    return check_name("group", name)


def check_name(field: str, name: object) -> str:
    """Raises `InvalidInput` for what cannot be a name in a manifest."""
    if not isinstance(name, str) or not 0 < len(name) <= _MAX_NAME_CHARACTERS or not name.isprintable():
        raise InvalidInput(
            f"{field} must be a name of 1 to {_MAX_NAME_CHARACTERS} printable characters, not {name!r:.200}"
        )
    return name


def check_start(start: object) -> str | int:
    """Raises `InvalidInput` for what is not a start of a group."""
    if start in ("earliest", "latest"):
        return str(start)
    if isinstance(start, bool) or not isinstance(start, int) or start < 0:
        raise InvalidInput(f"start must be 'earliest', 'latest' or a sequence, not {start!r}")
    return start


def check_opendata_places(prefix: str | None, manifest: str) -> None:
    """Raises `InvalidInput` for a path that OpenData's crate would encode, and so read from another path.

    >>> check_opendata_places("~me", "ingest/manifest")
    Traceback (most recent call last):
        ...
    penstock.errors.InvalidInput: data_path_prefix '~me' has '~', which OpenData's crate writes as '%7E' in a path: it \
and Penstock would each see an empty queue. Use another path, or a manifest of version 2 (`penstock manifest upgrade`)
    """
    for name, path in (("data_path_prefix", prefix or ""), ("manifest_path", manifest)):
        for character in path:
            if character in _ENCODED_BY_OPENDATA or not character.isascii():
                encoded = "".join(f"%{byte:02X}" for byte in character.encode(errors="surrogatepass"))
                raise InvalidInput(
                    f"{name} {path!r} has {character!r}, which OpenData's crate writes as {encoded!r} in a path: it "
                    "and Penstock would each see an empty queue. Use another path, or a manifest of version 2 "
                    "(`penstock manifest upgrade`)"
                )


def _check_places(config: ProducerConfig | ConsumerConfig) -> None:
    prefix: object = config.data_path_prefix
    manifest: object = config.manifest_path
    if not isinstance(prefix, str) or not prefix:
        raise InvalidInput(f"data_path_prefix must be a path such as 'ingest', not {prefix!r}")
    prefix = _named("data_path_prefix", check_prefix, prefix)
    if not isinstance(manifest, str):
        raise InvalidInput(f"manifest_path must be a path such as 'ingest/manifest', not {manifest!r}")
    check_apart(prefix, _named("manifest_path", check_path, manifest))
    object.__setattr__(config, "data_path_prefix", prefix)
    manifest_format = as_word("manifest_format", ManifestFormat, config.manifest_format)
    object.__setattr__(config, "manifest_format", manifest_format)
    if manifest_format is ManifestFormat.OPENDATA:
        check_opendata_places(prefix, manifest)


def _named(field: str, check: Callable[[str], str], value: str) -> str:
    try:
        return check(value)
    except InvalidInput as error:
        raise InvalidInput(f"{field}: {error}") from error
