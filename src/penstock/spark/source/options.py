"""The options of a read, as Spark hands them over: text by text, with names in lower case."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import Any

from penstock.buffer import DATA_PATH_PREFIX, MANIFEST_PATH, ConsumerConfig
from penstock.core import as_word, check_seconds, check_whole
from penstock.engine import ParseFormat, ParseMode, ParseOptions, PayloadSchemas, TimestampUnit
from penstock.errors import InvalidInput
from penstock.spark.source.schema_options import SchemaTexts, check_format
from penstock.spark.source.unknown_options import NO_TABLES, open_place
from penstock.storage import ObjectStore

_TARGET_PARTITION_BYTES = 64 << 20  # as large as a producer makes a batch
_SIZE = re.compile(r"(\d+)\s*(?:([kmgt])i?b?|b)?", re.IGNORECASE)
_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_EARLIEST, _LATEST = "earliest", "latest"
_MAX_SEQUENCE_DIGITS = 20  # of a number of 64 bits


class ReadFormat(StrEnum):
    """What `read` does with a payload."""

    RAW = "raw"
    JSON = "json"
    MSGPACK = "msgpack"
    AUTO = "auto"
    AVRO = "avro"
    PROTOBUF = "protobuf"
    CSV = "csv"
    JSON_VALUES = "json-values"


class OnError(StrEnum):
    """What becomes of a payload that does not parse."""

    DLQ = "dlq"
    SKIP = "skip"
    FAIL = "fail"


class OnCorruptBatch(StrEnum):
    """What becomes of a batch object that is missing or cannot be read."""

    FAIL = "fail"
    DLQ = "dlq"


class _Switch(StrEnum):
    ON = "on"
    OFF = "off"


@dataclass(frozen=True)
class ReadOptions:
    """The options of a read, checked. What is none of the data source's own is an option of the store."""

    where: str
    format: ReadFormat = ReadFormat.RAW
    columns: str | None = None
    on_error: OnError = OnError.DLQ
    parse_mode: ParseMode = ParseMode.STRICT
    rescue: str | None = None
    timestamp_unit: str | Mapping[str, str] | None = None
    avro_schema: str | None = None
    protobuf_descriptors: str | None = None
    protobuf_message: str | None = None
    csv_columns: str | None = None
    csv_delimiter: str | None = None
    on_corrupt_batch: OnCorruptBatch = OnCorruptBatch.FAIL
    group: str = "default"
    starting_sequence: int | str | None = None
    max_bytes: int | None = None
    max_batches: int | None = None
    max_records: int | None = None
    self_regulation: bool = True
    target_partition_bytes: int = _TARGET_PARTITION_BYTES
    poll_interval: float = 0.5
    manifest_path: str = MANIFEST_PATH
    data_path_prefix: str = DATA_PATH_PREFIX
    given: frozenset[str] = field(default=frozenset(), compare=False)  # the fields that options set
    storage: dict[str, str] = field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, options: Mapping[str, str]) -> ReadOptions:
        """Check the options of a read. Raises `InvalidInput` naming the option, the value and what is allowed."""
        given = {name.lower(): value for name, value in options.items()}
        where = given.pop("path", "")
        if not where:
            raise InvalidInput(
                "the buffer's place is missing: give it to load(...), for example load('s3://bucket/events')"
                + ("" if given else f". {NO_TABLES}")
            )
        values: dict[str, Any] = {}
        for field_name, (option, read) in _READERS.items():
            text = given.pop(option.lower(), None)
            if text is not None:
                values[field_name] = read(option, text)
        checked = cls(where, **values, given=frozenset(values), storage=given)
        if checked.columns is not None and checked.format is ReadFormat.RAW:
            raise InvalidInput(
                "columns says what json or msgpack is parsed into: give format too, or leave columns out"
            )
        if checked.parse_options != ParseOptions() and checked.format is ReadFormat.RAW:
            raise InvalidInput(
                "parseMode, rescue and timestampUnit say how json or msgpack is parsed: give format too, or leave them "
                "out"
            )
        if checked.format is not ReadFormat.RAW:
            check_format(checked.payload_schemas, ParseFormat(checked.format.value))
        elif checked.payload_schemas != PayloadSchemas():
            raise InvalidInput("an unparsed read has no schema of payloads: give format too, or leave the schema out")
        return checked

    @cached_property
    def parse_options(self) -> ParseOptions:
        """How payloads are parsed. Raises `InvalidInput` for what is no such option."""
        return ParseOptions(self.parse_mode, self.rescue, self.timestamp_unit)

    @cached_property
    def payload_schemas(self) -> PayloadSchemas:
        """What formats need to know of payloads. Raises `InvalidInput` for what is no schema."""
        return SchemaTexts(
            self.avro_schema, self.protobuf_descriptors, self.protobuf_message, self.csv_columns, self.csv_delimiter
        ).read()

    @property
    def self_regulation_is_asked(self) -> bool:
        """Whether the option `selfRegulation` is given, and on."""
        return self.self_regulation and "self_regulation" in self.given

    @property
    def may_cut_batches(self) -> bool:
        """Whether a batch may be read in several ranges. Where a broken one is set aside, it is as a whole."""
        return self.on_corrupt_batch is OnCorruptBatch.FAIL

    @cached_property
    def store(self) -> ObjectStore:
        """The buffer's store, opened when it is first asked for."""
        return open_place(self.where, self.storage, READ_OPTIONS)

    def consumer_config(self, *, gc: bool) -> ConsumerConfig:
        """How a consumer of this buffer and group is set up."""
        return ConsumerConfig(
            manifest_path=self.manifest_path,
            data_path_prefix=self.data_path_prefix,
            group=self.group,
            start="earliest" if self.starting_sequence is None else self.starting_sequence,
            gc=gc,
        )


def whole_number(name: str, text: str, least: int = 1) -> int:
    """Read a whole number. Raises `InvalidInput` naming the option."""
    try:
        value: object = int(text)
    except ValueError:
        value = text
    check_whole(name, value, least)
    return int(text)


def size_in_bytes(name: str, size: object) -> int:
    """Read a number of bytes: 1048576, `64m`, `1 GiB`. Raises `InvalidInput` naming the option.

    >>> size_in_bytes("maxBytesPerTrigger", "64m")
    67108864
    """
    text = size.strip() if isinstance(size, str) else "" if isinstance(size, bool) else str(size)
    found = _SIZE.fullmatch(text)
    number = int(found[1]) * _UNITS[(found[2] or "").lower()] if found else 0
    if not number:
        raise InvalidInput(f"{name} must be a number of bytes such as 1048576, 64m or 1g, and at least 1, not {size!r}")
    return number


def _seconds(name: str, text: str) -> float:
    try:
        value: object = float(text)
    except ValueError:
        value = text
    check_seconds(name, value, zero=True)
    return float(text)


def _starting_sequence(name: str, text: str) -> int | str | None:
    if text == _EARLIEST:
        return None
    if text == _LATEST:
        return _LATEST
    if text.isdecimal() and len(text) <= _MAX_SEQUENCE_DIGITS:
        return int(text)
    raise InvalidInput(f"{name} must be earliest, latest or a sequence, not {text[:100]!r}")


def _timestamp_unit(name: str, text: str) -> str | dict[str, str]:
    """Read a unit, or units of columns: `ms`, `at=ms, meta.at=s`."""
    if "=" not in text:
        return as_word(name, TimestampUnit, text.strip())
    pairs = [part.rpartition("=") for part in text.split(",")]
    if not all(column.strip() for column, _, _ in pairs):
        raise InvalidInput(f"{name} must be a unit, or units of columns such as at=ms,meta.at=s, not {text!r}")
    return {column.strip(): as_word(name, TimestampUnit, unit.strip()) for column, _, unit in pairs}


def _text(_name: str, text: str) -> str:
    return text


# The fields that an option sets, and how its text is read.
_READERS: dict[str, tuple[str, Callable[[str, str], object]]] = {
    "format": ("format", lambda name, text: as_word(name, ReadFormat, text)),
    "columns": ("columns", _text),
    "on_error": ("onError", lambda name, text: as_word(name, OnError, text)),
    "on_corrupt_batch": ("onCorruptBatch", lambda name, text: as_word(name, OnCorruptBatch, text)),
    "parse_mode": ("parseMode", lambda name, text: as_word(name, ParseMode, text)),
    "rescue": ("rescue", _text),
    "timestamp_unit": ("timestampUnit", _timestamp_unit),
    "avro_schema": ("avroSchema", _text),
    "protobuf_descriptors": ("protobufDescriptors", _text),
    "protobuf_message": ("protobufMessage", _text),
    "csv_columns": ("csvColumns", _text),
    "csv_delimiter": ("csvDelimiter", _text),
    "group": ("group", _text),
    "starting_sequence": ("startingSequence", _starting_sequence),
    "max_bytes": ("maxBytesPerTrigger", size_in_bytes),
    "max_batches": ("maxBatchesPerTrigger", whole_number),
    "max_records": ("maxRecordsPerTrigger", whole_number),
    "self_regulation": ("selfRegulation", lambda name, text: as_word(name, _Switch, text) is _Switch.ON),
    "target_partition_bytes": ("targetPartitionBytes", size_in_bytes),
    "poll_interval": ("pollInterval", _seconds),
    "manifest_path": ("manifestPath", _text),
    "data_path_prefix": ("dataPathPrefix", _text),
}
READ_OPTIONS = ("path", *(option for option, _ in _READERS.values()))
"""The names of the data source's own."""
