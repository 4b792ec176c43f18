"""The format of each payload of a block: by its record's content-type, or else by its first byte.

Formats are found for all payloads at once, as one byte each, so a block in one format costs little more than where the
format was given.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any, cast

import pyarrow as pa

from penstock.engine.parsing.payload_format import ParseFormat
from penstock.records import Record, bytes_of

UNKNOWN = ord("?")
CODES: dict[int, ParseFormat] = {
    ord("j"): ParseFormat.JSON,
    ord("m"): ParseFormat.MSGPACK,
    ord("a"): ParseFormat.AVRO,
    ord("p"): ParseFormat.PROTOBUF,
    ord("c"): ParseFormat.CSV,
}
"""The byte that stands for each format."""
_CODE_OF = {form: code for code, form in CODES.items()}

_NEVER_USED = b"\xc1"  # in MessagePack, and no JSON begins with it
_BY_FIRST_BYTE = bytes(
    _CODE_OF[ParseFormat.JSON]
    if byte in b"{ \t\r\n"
    else _CODE_OF[ParseFormat.MSGPACK]
    if 0x80 <= byte <= 0x8F or byte in (0xDE, 0xDF)
    else UNKNOWN
    for byte in range(256)
)
_CONTENT_TYPE = "content-type"
_MAX_CONTENT_TYPE_BYTES = 200
_CONTENT_TYPES = {
    "application/json": ParseFormat.JSON,
    "text/json": ParseFormat.JSON,
    "application/msgpack": ParseFormat.MSGPACK,
    "application/x-msgpack": ParseFormat.MSGPACK,
    "application/vnd.msgpack": ParseFormat.MSGPACK,
    "avro/binary": ParseFormat.AVRO,
    "application/avro": ParseFormat.AVRO,
    "application/x-avro": ParseFormat.AVRO,
    "application/avro-binary": ParseFormat.AVRO,
    "application/vnd.apache.avro": ParseFormat.AVRO,
    "application/x-protobuf": ParseFormat.PROTOBUF,
    "application/protobuf": ParseFormat.PROTOBUF,
    "application/vnd.google.protobuf": ParseFormat.PROTOBUF,
    "text/csv": ParseFormat.CSV,
    "application/csv": ParseFormat.CSV,
}
_WITH_SUFFIX = re.compile(r"[\w.!#$&^-]+/[\w.!#$&^+-]+\+(json|msgpack|avro|protobuf)")


def codes_of(values: pa.Array[Any], headers: pa.Array[Any] | None) -> bytes:
    """A byte of `CODES` for each payload, or `UNKNOWN`."""
    said = None if headers is None else _by_content_type(headers)
    if said is not None and UNKNOWN not in said:
        return said
    found = _by_first_byte(values)
    if said is None:
        return found
    return bytes(one if one != UNKNOWN else other for one, other in zip(said, found, strict=True))


def format_of_one(record: Record) -> ParseFormat | None:
    """The same of one payload, and its record's headers: a format, or None."""
    for key, value in record.headers or ():
        if key.lower() == _CONTENT_TYPE and (form := format_named(value)) is not None:
            return form
        if key.lower() == _CONTENT_TYPE:
            break  # the first of several counts
    return CODES.get(_BY_FIRST_BYTE[record.value[0]]) if record.value else None


def why_unknown(payload: bytes) -> str:
    """What is wrong with a payload that has no format."""
    if not payload:
        return "the value is empty"
    return (
        f"the format is not known: no content-type, and the first byte, 0x{payload[0]:02x}, begins neither a JSON "
        "object nor a MessagePack map"
    )


@lru_cache(maxsize=256)
def format_named(content_type: bytes) -> ParseFormat | None:
    """The format that a content-type names, without its parameters, in any case; None for another one.

    >>> format_named(b"Application/JSON; charset=utf-8")
    <ParseFormat.JSON: 'json'>
    """
    name = content_type[:_MAX_CONTENT_TYPE_BYTES].decode("latin-1").partition(";")[0].strip().lower()
    with_suffix = _WITH_SUFFIX.fullmatch(name)
    return ParseFormat(with_suffix[1]) if with_suffix else _CONTENT_TYPES.get(name)


def _by_first_byte(values: pa.Array[Any]) -> bytes:
    import pyarrow.compute as pc

    first: Any = pc.binary_slice(cast("Any", values), 0, 1)
    if bytes_of(first) < len(values):  # a payload has no bytes
        is_empty: Any = pc.equal(pc.binary_length(cast("Any", values)), pa.scalar(0, pa.int32()))
        first = pc.if_else(is_empty, pa.scalar(_NEVER_USED, values.type), first)
    data: bytes = first.buffers()[2].to_pybytes() if len(values) else b""
    return data[: len(values)].translate(_BY_FIRST_BYTE)


def _by_content_type(headers: Any) -> bytes | None:
    """The formats that headers name; None where they name none."""
    import pyarrow.compute as pc

    pairs = headers.flatten()
    if not len(pairs):
        return None
    keys, texts = pairs.flatten()  # of the struct, where its offset counts
    is_named: Any = pc.equal(pc.ascii_lower(keys), pa.scalar(_CONTENT_TYPE))
    if not pc.any(is_named).as_py():
        return None
    rows: list[int] = pc.list_parent_indices(headers).filter(is_named).to_pylist()
    words: Any = texts.filter(is_named).dictionary_encode()
    codes = [_code(word) for word in words.dictionary.to_pylist()]
    if len(codes) == 1 and len(rows) == len(headers) and rows == list(range(len(headers))):
        return bytes(codes) * len(headers)
    found = bytearray([UNKNOWN]) * len(headers)
    for row, at in zip(reversed(rows), reversed(words.indices.to_pylist()), strict=True):  # the first of several counts
        found[row] = codes[at]
    return bytes(found)


def _code(content_type: bytes | None) -> int:
    form = None if content_type is None else format_named(content_type)
    return UNKNOWN if form is None else _CODE_OF[form]
