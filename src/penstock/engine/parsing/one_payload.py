"""One payload: parsed by the rules of a block, or one field of it, found without parsing the rest."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import msgspec
import pyarrow as pa

from penstock.core import as_word
from penstock.engine.parsing.format_groups import Payloads
from penstock.engine.parsing.json_payloads import JsonPayloads
from penstock.engine.parsing.parser import parse_objects
from penstock.engine.parsing.payload_format import REFUSALS, TOO_DEEP, Decode, ParseFormat, parse_error
from penstock.engine.parsing.payload_schemas import NO_SCHEMAS, PayloadSchemas, check_schemas
from penstock.engine.parsing.row_values import format_of
from penstock.errors import InvalidInput, ParseFailed
from penstock.records import Record, records_to_arrow

_QUICK = (ParseFormat.JSON, ParseFormat.MSGPACK)
_MAX_NAMES = 1024  # whose decoders are kept


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
    values, headers = _columns(payload)
    check_schemas("payload_schemas", payload_schemas)
    form = as_word("format", ParseFormat, format)
    payload_schemas.check("format", form)
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
    parts: list[Any] = path.split(".") if isinstance(path, str) else list(path)
    if not parts or not all(isinstance(part, str) and part for part in parts):
        raise InvalidInput(f"path must be names with dots between them, such as 'user.id', not {path!r}")
    values, headers = _columns(payload)
    check_schemas("payload_schemas", payload_schemas)
    form = as_word("format", ParseFormat, format)
    payload_schemas.check("format", form)
    if form is ParseFormat.JSON_VALUES:
        return _walk(parse_one(payload, form), parts)
    groups, bad = Payloads(values, form, payload_schemas, headers).groups()
    if bad:
        raise _failed(bad[0])
    return _found(groups[0].values[0].as_py(), groups[0].form, parts)


def _columns(payload: object) -> tuple[pa.Array[Any], pa.Array[Any] | None]:
    if not isinstance(payload, bytes | Record):
        raise InvalidInput(f"a payload must be bytes or a Record, not {type(payload).__name__}")
    columns = records_to_arrow([payload])
    return columns.column("value"), columns.column("headers") if "headers" in columns.schema.names else None


def _found(payload: bytes, form: ParseFormat, parts: Sequence[str]) -> Any:
    reader = format_of(form)
    if isinstance(reader, JsonPayloads) and (why := reader.why_bad(payload)) is not None:
        raise _failed(why)
    if not payload:
        raise _failed("the value is empty")
    raw: bytes = payload
    try:
        for at, part in enumerate(parts):
            if _is_object(raw):
                raw = bytes(_member(form, part)(raw).value)
            elif at and part.isdecimal() and (items := _items(form, raw)) is not None and int(part) < len(items):
                raw = bytes(items[int(part)])
            elif not at:
                reader.decoders.object(raw)  # which says why it is none
                return None
            else:
                return None
            if not raw:
                return None
        return reader.value(raw)
    except RecursionError:
        raise _failed(TOO_DEEP) from None
    except UnicodeDecodeError:
        raise _failed("not valid UTF-8") from None
    except REFUSALS as error:
        raise _failed(error) from None


def _is_object(raw: bytes) -> bool:
    first = raw.lstrip(b" \t\r\n")[:1]
    return first == b"{" or b"\x80" <= first <= b"\x8f" or first in (b"\xde", b"\xdf")


def _items(form: ParseFormat, raw: bytes) -> list[Any] | None:
    found = format_of(form).opened(raw)
    return found if type(found) is list else None


@lru_cache(maxsize=_MAX_NAMES)
def _member(form: ParseFormat, name: str) -> Decode:
    """A decoder of objects that takes one member, encoded, and skips the others; without it there are no bytes."""
    members: list[Any] = [("value", msgspec.Raw, msgspec.Raw())]
    return format_of(form).decoders.struct(msgspec.defstruct("OneMember", members, rename={"value": name}, gc=False))


def _walk(value: Any, parts: Sequence[str]) -> Any:
    for part in parts:
        if isinstance(value, dict):
            value = value.get(part)
        elif isinstance(value, list) and part.isdecimal() and int(part) < len(value):
            value = value[int(part)]
        else:
            return None
    return value


def _failed(why: object) -> ParseFailed:
    return ParseFailed(parse_error(0, why).reason)
