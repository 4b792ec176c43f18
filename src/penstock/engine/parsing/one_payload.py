"""One payload: parsed by the rules of a block, or one field of it, found without parsing the rest."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import msgspec
import pyarrow as pa

from penstock.core import as_word
from penstock.engine.parsing.format_groups import Payloads
from penstock.engine.parsing.json_payloads import JsonPayloads
from penstock.engine.parsing.msgpack_payloads import why_refused
from penstock.engine.parsing.parser import parse_objects
from penstock.engine.parsing.payload_format import REFUSALS, TOO_DEEP, ParseFormat, parse_error
from penstock.engine.parsing.payload_kinds import format_of_one
from penstock.engine.parsing.payload_schemas import NO_SCHEMAS, PayloadSchemas, check_schemas
from penstock.engine.parsing.row_values import format_of
from penstock.errors import InvalidInput, ParseFailed
from penstock.records import Record, records_to_arrow

_SKIPPING = (ParseFormat.JSON, ParseFormat.MSGPACK)  # in which a field is found without decoding the others
_MAX_NAMES = 1024  # whose decoders are kept
_MAX_INDEX_DIGITS = 10  # of an item of a list
_NO_FIELD = re.compile(r'["\\\x00-\x1f]')  # what the name of a struct's field cannot have in it


def parse_one(
    payload: bytes | Record,
    format: str = ParseFormat.JSON,  # noqa: A002  as in Spark
    *,
    payload_schemas: PayloadSchemas = NO_SCHEMAS,
) -> Any:
    """What a payload says, by the rules that a block is parsed with: a dict, or with `json-values` any value.

    With `auto`, a `Record` may name its format in the header `content-type`. Raises `ParseFailed` with the reason that
    a dead letter would have, and `InvalidInput` for what is no payload, no format, or a format without its schema.

    >>> parse_one(b'{"id": 7, "tags": ["new"]}')
    {'id': 7, 'tags': ['new']}
    >>> parse_one(b"oops")
    Traceback (most recent call last):
    penstock.errors.ParseFailed: parse error: JSON is malformed: invalid character (byte 0)
    """
    record, form = _checked(payload, format, payload_schemas)
    values, headers = _columns(record, form)
    found = parse_objects(values, form, payload_schemas=payload_schemas, headers=headers)
    if found.errors:
        raise ParseFailed(found.errors[0].reason)
    return found.objects[0]


def field(
    payload: bytes | Record,
    path: str | Sequence[str],
    format: str = ParseFormat.AUTO,  # noqa: A002  as in Spark
    *,
    payload_schemas: PayloadSchemas = NO_SCHEMAS,
) -> Any:
    """The value of one field, such as `"user.id"`, without parsing the rest; None where it is absent, or null.

    A number picks an item of a list: `"items.0.price"`. A name with a dot in it is a part of a list of names:
    `["user.name", "first"]`. In JSON and MessagePack the rest is skipped, so a key that is there twice is not noticed
    (the last one counts), and neither is what is wrong inside of a MessagePack value that is skipped. Raises
    `ParseFailed` for any other payload that does not parse, and `InvalidInput` as `parse_one` does.

    >>> field(b'{"user": {"id": 7, "tags": ["a", "b"]}}', "user.tags.1")
    'b'
    """
    parts = _parts(path)
    record, form = _checked(payload, format, payload_schemas)
    if form is ParseFormat.JSON_VALUES:
        return _walk(parse_one(record, form), parts)
    if form in _SKIPPING:
        return _found(record.value, form, parts)
    values, headers = _columns(record, form)
    groups, bad = Payloads(values, form, payload_schemas, headers).groups()
    if bad:
        raise _failed(bad[0])
    return _found(groups[0].values[0].as_py(), groups[0].form, parts)


def _checked(payload: object, form: str, schemas: PayloadSchemas) -> tuple[Record, ParseFormat]:
    """The payload as a record; and the format, which is `auto` only where JSON and MessagePack are not found."""
    if not isinstance(payload, bytes | bytearray | memoryview | Record):
        raise InvalidInput(f"a payload must be bytes or a Record, not {type(payload).__name__}")
    record = payload if isinstance(payload, Record) else Record(bytes(payload))
    check_schemas("payload_schemas", schemas)
    checked = as_word("format", ParseFormat, form)
    schemas.check("format", checked)
    if checked is ParseFormat.AUTO and (found := format_of_one(record)) in _SKIPPING and found is not None:
        return record, found
    return record, checked


def _columns(record: Record, form: ParseFormat) -> tuple[pa.Array[Any], pa.Array[Any] | None]:
    if form is not ParseFormat.AUTO or record.headers is None:
        return pa.array([record.value], pa.binary()), None
    columns = records_to_arrow([record])
    return columns.column("value"), columns.column("headers")


def _parts(path: object) -> list[str]:
    parts = path.split(".") if isinstance(path, str) else list(path) if isinstance(path, list | tuple) else []
    if not parts or not all(isinstance(part, str) and part for part in parts):
        raise InvalidInput(f"path must be names with dots between them, such as 'user.id', not {path!r}")
    return parts


def _found(payload: bytes, form: ParseFormat, parts: Sequence[str]) -> Any:
    reader = format_of(form)
    if isinstance(reader, JsonPayloads) and (why := reader.why_bad(payload)) is not None:
        raise _failed(why)
    if not payload:
        raise _failed("the value is empty")
    try:
        if not reader.is_object(payload):
            reader.decoders.object(payload)  # which says why it is none
        raw = payload
        for part in parts:
            raw = _member(form, part)(raw) if reader.is_object(raw) else _item(reader.opened(raw), part)
            if not raw:
                return None
        return _whole(reader.value(raw), form, 1 + len(parts))
    except RecursionError:
        raise _failed(TOO_DEEP) from None
    except UnicodeDecodeError:
        raise _failed("not valid UTF-8") from None
    except REFUSALS as error:
        raise _failed(error) from None


def _whole(value: Any, form: ParseFormat, depth: int) -> Any:
    """The value of a field. What is wrong inside of it is an error, as where the payload is parsed."""
    if form is ParseFormat.MSGPACK and (why := why_refused([value], depth)) is not None:
        raise _failed(why)
    return value


def _item(opened: object, part: str) -> bytes:
    """The item of a list that a number picks, encoded; no bytes where there is none."""
    at = _index(part)
    return bytes(opened[at]) if type(opened) is list and at is not None and at < len(opened) else b""


def _index(part: str) -> int | None:
    return int(part) if part.isascii() and part.isdecimal() and len(part) <= _MAX_INDEX_DIGITS else None


@lru_cache(maxsize=_MAX_NAMES)
def _member(form: ParseFormat, name: str) -> Callable[[bytes], bytes]:
    """A function that takes one member of an object, encoded, and skips the others; without it there are no bytes."""
    decoders = format_of(form).decoders
    if _NO_FIELD.search(name):
        return lambda raw: bytes(dict(decoders.members(raw)).get(name, b""))
    members: list[Any] = [("value", msgspec.Raw, msgspec.Raw())]
    decode = decoders.struct(msgspec.defstruct("OneMember", members, rename={"value": name}, gc=False))
    return lambda raw: bytes(decode(raw).value)


def _walk(value: Any, parts: Sequence[str]) -> Any:
    for part in parts:
        if isinstance(value, dict):
            value = value.get(part)
        elif isinstance(value, list) and (at := _index(part)) is not None and at < len(value):
            value = value[at]
        else:
            return None
    return value


def _failed(why: object) -> ParseFailed:
    return ParseFailed(parse_error(0, why).reason)
