"""What is called with each input, and what has to hold of a value that comes back."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from google.protobuf import struct_pb2

from fuzz.corpus import BATCH, DECODED_PAYLOAD, EVENT, HEAD, LOG_OBJECT, MANIFEST, PAYLOAD, SEGMENT, SEGMENT_NAME
from fuzz.mutations import CAP
from penstock.buffer import Manifest, decode_batch, encode_batch
from penstock.buffer.manifest.v1.codec import OpenDataManifest, next_epoch
from penstock.buffer.manifest.v2.head import decode_head, encode_head
from penstock.buffer.manifest.v2.segments import decode_segment, encode_segment
from penstock.engine import ParseFormat, PayloadSchemas, parse_as
from penstock.engine.parsing.parser import parse_inferred, parse_objects
from penstock.errors import CorruptData
from penstock.metalog.catalog.wire import decode_event, encode_event
from penstock.metalog.object.format import decode, encode
from penstock.records import bytes_of, records_from_arrow


class WrongValue(Exception):
    """A value came back that cannot be what the bytes say."""


@dataclass(frozen=True, slots=True)
class Target:
    """A call that takes any bytes. It returns, or raises `CorruptData`; everything else is a finding."""

    name: str
    kind: str
    call: Callable[[bytes], object]


def read_batch(data: bytes) -> None:
    """Decode a batch; what comes back can be used in full, and is written and read again as it is."""
    batch = decode_batch(data, max_batch_bytes=CAP)
    try:
        batch.validate(full=True)
        size = bytes_of(batch.column("value"))
        if batch.num_rows > 20_000:
            return
        records = records_from_arrow(batch)
        again = records_from_arrow(decode_batch(encode_batch(records)))
    except CorruptData as error:
        raise WrongValue(f"a batch was decoded that cannot be used: {error}") from error
    _require(size == sum(len(record.value) for record in records), "the values have another size than their column")
    _require(again == records, "the records did not come back")
    if data[-7:-6] == b"\x00" and data[-2:] == b"\x01\x00":
        written = encode_batch([record.value for record in records], format="opendata")
        _require(written == data, "a batch of version 1 can be written in one way only, and this is another")


def read_manifest(data: bytes) -> None:
    """Decode a manifest; there is one way only to write what comes back."""
    found = Manifest.decode(data)
    if found.head is not None:
        return  # version 2: `read_head` looks at it
    first = found.next_sequence - len(found.entries)
    _require([entry.sequence for entry in found.entries] == [*range(first, found.next_sequence)], "a gap")
    if all(entry.location for entry in found.entries):  # we do not write empty ones, and read them
        empty = OpenDataManifest(struct.pack("<IQQH", 0, first, found.epoch, 1))
        written = empty.append([(entry.location, entry.metadata) for entry in found.entries])
        _require(written.data == data, "a manifest can be written in one way only, and this is another")


def read_head(data: bytes) -> None:
    """Decode a head; it is written and read again as it is."""
    head = decode_head(data)
    _require(decode_head(encode_head(head)) == head, "a head did not come back")
    _require(head.first_sequence <= head.next_sequence, "it ends before it begins")
    _require(Manifest.decode(data).head == head, "a manifest is not its head")


def read_segment(data: bytes) -> None:
    """Decode a segment; it is written and read again as it is."""
    segment = decode_segment(data, SEGMENT_NAME)
    written = encode_segment(segment, SEGMENT_NAME)
    _require(decode_segment(written, SEGMENT_NAME) == segment, "a segment did not come back")


def read_event(data: bytes) -> None:
    """Decode a segment event; it is written and read again as it is."""
    event = decode_event(data)
    written = encode_event(event)
    _require(decode_event(written) == event, "a segment event did not come back")
    _require(len(written) <= len(data), "there are fewer bytes than what they say needs")


def read_log_object(data: bytes) -> None:
    """Decode an object of the metadata log, as it is and with the right checksum; there is one way only to write it."""
    signed = data[:49] + struct.pack(">I", zlib.crc32(data[53:], zlib.crc32(data[:49]))) + data[53:]
    found = decode(signed)
    _require(encode(found.first, found.number, found.nonce, found.payloads) == signed, "an object did not come back")
    decode(data)


def read_payload(data: bytes) -> None:
    """Parse a payload between two good ones, into columns that are inferred and into columns that are given."""
    reasons = []
    for form, good in ((ParseFormat.JSON, b'{"a":1}'), (ParseFormat.MSGPACK, b"\x81\xa1a\x01")):
        values = pa.array([good, data, good], pa.binary())
        objects, inferred = parse_objects(values, form), parse_inferred(values, form)
        batch = inferred.batch
        batch.validate(full=True)
        _require(batch.num_rows + len(inferred.errors) == len(values), "inferred: a row is missing")
        _require(len(objects.objects) + len(objects.errors) == len(values), "objects: a row is missing")
        typed = parse_as(values, _GIVEN, form)
        typed.batch.validate(full=True)
        _require(typed.batch.num_rows + len(typed.errors) == len(values), "given: a row is missing")
        reasons += [error.reason for error in (*inferred.errors, *typed.errors)]
        _require(
            all(error.index == 1 for error in (*inferred.errors, *typed.errors)),
            "another row is refused",
        )
    if len(reasons) > 2:
        raise CorruptData(reasons[0].removeprefix("parse error: "))


def read_decoded_payload(data: bytes) -> None:
    """Parse a payload in each format that is decoded with a schema, and as any JSON: one row or one reason."""
    values = pa.array([data], pa.binary())
    reasons = []
    # Avro first: its reason is the one that is raised, and it says most about how far the decoder came.
    forms = (ParseFormat.AVRO, ParseFormat.PROTOBUF, ParseFormat.CSV, ParseFormat.AUTO, ParseFormat.JSON_VALUES)
    for form in forms:
        found = parse_inferred(values, form, payload_schemas=_SCHEMAS)
        found.batch.validate(full=True)
        objects = parse_objects(values, form, payload_schemas=_SCHEMAS)
        _require(found.batch.num_rows + len(found.errors) == 1, f"{form}: a row is missing")
        _require(len(objects.objects) + len(objects.errors) == 1, f"{form}: an object is missing")
        reasons += [error.reason for error in objects.errors]
    if len(reasons) == len(forms):
        raise CorruptData(reasons[0].removeprefix("parse error: "))


def change_manifest(data: bytes) -> None:
    """Append, bump the epoch and dequeue, without decoding what is there."""
    manifest = OpenDataManifest(data)
    entries = data[:-22]
    first, following = manifest.first_sequence, manifest.next_sequence
    if following < (1 << 64) - 1 and manifest.count < (1 << 32) - 1:
        _require(manifest.append([("x", ())]).data.startswith(entries), "appending changed what was there")
    _require(manifest.with_epoch(next_epoch(manifest.epoch)).data[:-22] == entries, "a bump changed the entries")
    for through in (first - 1, first, first + 1, following - 1, following):
        rest = manifest.remove_through(through)
        _require(entries.endswith(rest.data[:-22]), "dequeuing changed what remains")
        _require(rest.next_sequence == following, "dequeuing gave sequences back")


def _require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise WrongValue(otherwise)


_FIELDS: list[pa.Field[Any]] = [
    pa.field("a", pa.int64()),
    pa.field("d", pa.float64()),
    pa.field("n", pa.decimal128(38, 2)),
    pa.field("t", pa.timestamp("us", tz="UTC")),
    pa.field("f", pa.string()),
    pa.field("g", pa.struct([pa.field("h", pa.map_(pa.string(), pa.string()))])),
]
_GIVEN = pa.schema(_FIELDS)
_SCHEMAS = PayloadSchemas(
    avro={
        "type": "record",
        "name": "Node",
        "fields": [
            {"name": "next", "type": ["null", "Node"]},
            {"name": "nothing", "type": {"type": "array", "items": "null"}},
            {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
            {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
            {"name": "tags", "type": {"type": "map", "values": "string"}},
        ],
    },
    protobuf=struct_pb2.Struct,  # which may have itself inside
    csv=["a", "b"],
)

TARGETS = (
    Target("read_batch", BATCH, read_batch),
    Target("read_manifest", MANIFEST, read_manifest),
    Target("change_manifest", MANIFEST, change_manifest),
    Target("read_head", HEAD, read_head),
    Target("read_segment", SEGMENT, read_segment),
    Target("read_event", EVENT, read_event),
    Target("read_log_object", LOG_OBJECT, read_log_object),
    Target("read_payload", PAYLOAD, read_payload),
    Target("read_decoded_payload", PAYLOAD, read_decoded_payload),
    Target("read_decoded_payload_with_schema", DECODED_PAYLOAD, read_decoded_payload),
)
