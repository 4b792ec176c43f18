"""Avro payloads: one datum each, without a header, in the binary encoding of a writer's schema.

fastavro checks the schema, and the datum is read here: fastavro's own reader ends the process on a payload that is
nested deep, rounds decimals that are longer than their schema says, and goes on for ever in an array of nulls.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta
from decimal import Context, Decimal
from functools import lru_cache
from typing import Any, TypeAlias
from uuid import UUID

from penstock.engine.parsing.payload_format import MAX_DEPTH, TOO_DEEP, BadPayload
from penstock.errors import InvalidInput

Decoded: TypeAlias = dict[str, Any]
_Read: TypeAlias = "Callable[[_Input, int], Any]"

_MAX_EMPTY_ITEMS = 65_536  # of an array whose items have no bytes: their number alone would fill the memory
_MAX_VARINT_BYTES = 10
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_EXACT = Context(prec=1_000_000)
_FLOAT, _DOUBLE = struct.Struct("<f"), struct.Struct("<d")


class AvroDecoder:
    """Reads payloads that were written with one schema."""

    def __init__(self, schema: str) -> None:
        self._read = _Readers().of(checked_avro_schema(schema))

    def __call__(self, payload: bytes) -> Decoded:
        """The record, or the map, in a payload. Raises `BadPayload`."""
        data = _Input(payload)
        try:
            value = self._read(data, 1)
        except BadPayload:
            if not payload:  # which is a datum too where all fields are null
                raise BadPayload("the value is empty") from None
            raise
        if data.at != len(payload):
            raise BadPayload(f"Avro ends at byte {data.at}, and there are {len(payload)}")
        if not isinstance(value, dict):
            raise BadPayload("the Avro datum is neither a record nor a map")
        return value


@lru_cache(maxsize=16)
def checked_avro_schema(schema: str) -> Any:
    """A schema as fastavro parses it. Raises `InvalidInput` for text that is none, and where fastavro is missing."""
    try:
        from fastavro import parse_schema
    except ImportError as error:
        raise InvalidInput("Avro payloads need the extra `avro`: pip install 'penstock[avro]'") from error
    try:
        return parse_schema(json.loads(schema), _force=True)
    except Exception as error:  # fastavro has no one error for a schema that is wrong
        raise InvalidInput(f"the Avro schema is no schema: {type(error).__name__}: {error}") from error


class _Input:
    """Bytes, and how far they were read."""

    __slots__ = ("at", "data")

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def take(self, count: int) -> bytes:
        start = self.at
        if count < 0 or count > len(self.data) - start:
            raise BadPayload(f"Avro is cut off, or has a wrong length, at byte {start}")
        self.at = start + count
        return self.data[start : self.at]

    def number(self) -> int:
        data, at, found, shift = self.data, self.at, 0, 0
        for byte in data[at : at + _MAX_VARINT_BYTES]:
            found |= (byte & 0x7F) << shift
            at += 1
            if byte < 0x80:
                self.at = at
                return (found >> 1) ^ -(found & 1)
            shift += 7
        raise BadPayload(f"Avro is cut off, or has a wrong number, at byte {self.at}")


class _Readers:
    """A function for each schema that reads a value of it; named types are known once they were met."""

    def __init__(self) -> None:
        self._named: dict[str, _Read] = {}

    def of(self, schema: Any) -> _Read:
        if isinstance(schema, list):
            return self._union(schema)
        if isinstance(schema, str):
            return _PRIMITIVES[schema] if schema in _PRIMITIVES else self._reference(schema)
        kind = schema["type"]
        if kind in ("record", "error"):
            return self._record(schema)
        if kind == "array":
            return self._array(schema["items"])
        if kind == "map":
            return self._map(schema["values"])
        if kind == "enum":
            return self._keep(schema, _enum(schema["symbols"]))
        if kind == "fixed":
            size = schema["size"]
            return self._keep(schema, _logical(schema, lambda data, _: data.take(size)))
        return _logical(schema, self.of(kind))

    def _keep(self, schema: Any, read: _Read) -> _Read:
        self._named[schema["name"]] = read
        return read

    def _reference(self, name: str) -> _Read:
        named = self._named
        return named.get(name) or (lambda data, depth: named[name](data, depth))  # a type that is inside itself

    def _record(self, schema: Any) -> _Read:
        fields: list[tuple[str, _Read]] = []

        def read(data: _Input, depth: int) -> Decoded:
            _check_depth(depth)
            return {name: of_field(data, depth + 1) for name, of_field in fields}

        self._keep(schema, read)
        fields += [(field["name"], self.of(field["type"])) for field in schema["fields"]]
        return read

    def _union(self, schemas: list[Any]) -> _Read:
        branches = [self.of(schema) for schema in schemas]

        def read(data: _Input, depth: int) -> Any:
            branch = data.number()
            if not 0 <= branch < len(branches):
                raise BadPayload(f"Avro names branch {branch} of a union of {len(branches)}")
            return branches[branch](data, depth)

        return read

    def _array(self, items: Any) -> _Read:
        of_item = self.of(items)

        def read(data: _Input, depth: int) -> list[Any]:
            _check_depth(depth)
            found: list[Any] = []
            while count := _items(data):
                for _ in range(count):
                    start = data.at
                    found.append(of_item(data, depth + 1))
                    if data.at == start and len(found) > _MAX_EMPTY_ITEMS:
                        raise BadPayload(f"an Avro array has more than {_MAX_EMPTY_ITEMS} items without a byte")
            return found

        return read

    def _map(self, values: Any) -> _Read:
        of_value = self.of(values)

        def read(data: _Input, depth: int) -> Decoded:
            _check_depth(depth)
            found: Decoded = {}
            while count := _items(data):
                for _ in range(count):
                    key = _text(data, depth)
                    if key in found:
                        raise BadPayload("an Avro map has a key twice")
                    found[key] = of_value(data, depth + 1)
            return found

        return read


def _check_depth(depth: int) -> None:
    if depth > MAX_DEPTH:
        raise BadPayload(TOO_DEEP)


def _items(data: _Input) -> int:
    """How many items come next, of an array or a map; 0 at its end."""
    count = data.number()
    if count < 0:
        data.number()  # how many bytes they have, for readers that skip them
    return abs(count)


def _boolean(data: _Input, _: int) -> bool:
    byte = data.take(1)[0]
    if byte > 1:
        raise BadPayload(f"Avro has {byte} for a boolean, at byte {data.at - 1}")
    return byte == 1


def _integer(bits: int) -> _Read:
    most = 1 << (bits - 1)

    def read(data: _Input, _: int) -> int:
        number = data.number()
        if not -most <= number < most:
            raise BadPayload(f"Avro has a number that is no {'int' if bits == 32 else 'long'}")
        return number

    return read


def _bytes(data: _Input, _: int) -> bytes:
    return data.take(data.number())


def _text(data: _Input, _: int) -> str:
    try:
        return data.take(data.number()).decode()
    except UnicodeDecodeError:
        raise BadPayload("not valid UTF-8") from None


def _enum(symbols: list[str]) -> _Read:
    def read(data: _Input, _: int) -> str:
        at = data.number()
        if not 0 <= at < len(symbols):
            raise BadPayload(f"Avro names symbol {at} of an enum of {len(symbols)}")
        return symbols[at]

    return read


_PRIMITIVES: dict[str, _Read] = {
    "null": lambda _data, _depth: None,
    "boolean": _boolean,
    "int": _integer(32),
    "long": _integer(64),
    "float": lambda data, _: _FLOAT.unpack(data.take(4))[0],
    "double": lambda data, _: _DOUBLE.unpack(data.take(8))[0],
    "bytes": _bytes,
    "string": _text,
}

_UNITS: dict[str, int] = {"millis": 1000, "micros": 1, "nanos": 0}


def _logical(schema: Any, read: _Read) -> _Read:
    """What a value means: an instant, a local time, a date, a decimal. A logical type of another name changes nothing.

    Where JSON has no such value, it becomes the text that JSON has for it.
    """
    name = schema.get("logicalType")
    meaning: Callable[[Any], Any]
    if name == "decimal":
        scale = schema.get("scale", 0)
        meaning = lambda raw: _decimal(raw, scale)  # noqa: E731  one of several meanings
    elif name == "date":
        meaning = lambda days: date(1970, 1, 1) + timedelta(days=days)  # noqa: E731
    elif name in ("time-millis", "time-micros"):
        unit = _UNITS[name.rpartition("-")[2]]
        meaning = lambda count: _time(count * unit)  # noqa: E731
    elif isinstance(name, str) and name.rpartition("timestamp-")[2] in _UNITS and "timestamp-" in name:
        meaning = _timestamp(_UNITS[name.rpartition("-")[2]], is_local=name.startswith("local-"))
    elif name == "uuid":
        meaning = lambda raw: str(UUID(bytes=raw)) if isinstance(raw, bytes) else raw  # noqa: E731
    else:
        return read

    def of_meaning(data: _Input, depth: int) -> Any:
        try:
            return meaning(read(data, depth))
        except (ValueError, OverflowError):
            raise BadPayload(f"Avro has a value that is no {name}") from None

    return of_meaning


def _timestamp(unit: int, *, is_local: bool) -> Callable[[int], datetime]:
    start = _EPOCH.replace(tzinfo=None) if is_local else _EPOCH

    def read(count: int) -> datetime:
        return start + timedelta(microseconds=count * unit if unit else count // 1000)

    return read


def _time(micros: int) -> time:
    if not 0 <= micros < 86_400_000_000:
        raise ValueError(micros)
    return (_EPOCH + timedelta(microseconds=micros)).time()


def _decimal(raw: bytes, scale: int) -> str:
    """The digits as they are written, in text, so that none is lost."""
    return format(Decimal(int.from_bytes(raw, "big", signed=True)).scaleb(-scale, _EXACT), "f")
