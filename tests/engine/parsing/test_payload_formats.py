"""Formats beside JSON and MessagePack: found by themselves, Avro, Protobuf, CSV, any JSON value, and one payload."""

from __future__ import annotations

import io
import json
import pickle
import sys
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import fastavro
import msgspec
import pyarrow as pa
import pytest
from google.protobuf import struct_pb2
from hypothesis import given
from hypothesis import strategies as st

from penstock import Record
from penstock.engine import (
    BatchEngine,
    CsvColumns,
    EngineConfig,
    MemoryTransport,
    ParsedBatch,
    ParseFormat,
    PayloadSchemas,
    ProtobufMessage,
    WorkBatch,
    field,
    parse_as,
    parse_one,
)
from penstock.errors import InvalidInput, ParseFailed
from penstock.records import records_to_arrow
from tests.support.protobuf_messages import message_class

AVRO: dict[str, Any] = {
    "type": "record",
    "name": "Event",
    "fields": [
        {"name": "id", "type": ["null", "long"]},
        {"name": "name", "type": "string"},
        {"name": "score", "type": "double"},
        {"name": "ok", "type": "boolean"},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
    ],
}
KINDS: dict[str, pa.DataType] = {
    "id": pa.int64(),
    "name": pa.string(),
    "score": pa.float64(),
    "ok": pa.bool_(),
    "tags": pa.list_(pa.string()),
}
SCHEMA = pa.schema(KINDS)
ROW = {"id": 7, "name": "x", "score": 1.5, "ok": True, "tags": ["a"]}
AVRO_TYPE = [("content-type", b"avro/binary")]
TEXT = st.text(max_size=8)
ROWS = st.fixed_dictionaries(
    {
        "id": st.none() | st.integers(-(2**63), 2**63 - 1),
        "name": TEXT,
        "score": st.floats(allow_nan=False, allow_infinity=False),
        "ok": st.booleans(),
        "tags": st.lists(TEXT, max_size=3),
    }
)


def avro(row: object, schema: Any = AVRO) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), row)
    return out.getvalue()


def record_of(name: str, kind: Any) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": [{"name": "v", "type": kind}]}


def parsed(values: list[bytes], form: str, **more: Any) -> ParsedBatch:
    return ParsedBatch.parse(WorkBatch([Record(value) for value in values]), form, **more)


def reasons(batch: ParsedBatch) -> list[str]:
    return [letter.reason for letter in batch.dead_letters]


@given(st.lists(st.tuples(ROWS, st.sampled_from("jma")), max_size=12))
def test_rows_in_any_mixture_of_json_messagepack_and_avro_have_the_same_columns(rows: list[tuple[Any, str]]) -> None:
    makers: dict[str, Callable[[Any], Record]] = {
        "j": lambda row: Record(json.dumps(row).encode()),
        "m": lambda row: Record(msgspec.msgpack.encode(row)),
        "a": lambda row: Record(avro(row), headers=AVRO_TYPE),
    }
    mixed = records_to_arrow([makers[kind](row) for row, kind in rows])
    plain = pa.array([json.dumps(row).encode() for row, _ in rows], pa.binary())
    headers = mixed.column("headers") if "headers" in mixed.schema.names else None
    found = parse_as(
        mixed.column("value"), SCHEMA, ParseFormat.AUTO, payload_schemas=PayloadSchemas(AVRO), headers=headers
    )
    expected = parse_as(plain, SCHEMA)
    assert found.errors == expected.errors == ()
    assert list(found.good) == list(range(len(rows)))
    assert found.batch.equals(expected.batch)


@pytest.mark.parametrize("form", ["auto", "avro", "protobuf", "csv", "json-values"])
@given(values=st.lists(st.binary(max_size=40), max_size=5))
def test_random_bytes_are_rows_or_parse_errors_in_every_format(form: str, values: list[bytes]) -> None:
    schemas = PayloadSchemas(AVRO, struct_pb2.Struct, ["a", "b"])
    batch = parsed(values, form, payload_schemas=schemas)
    assert len(batch.parsed) + len(batch.dead_letters) == len(values)
    assert batch.arrow.num_rows + len(batch.dead_letters) == len(values)


def test_a_mixed_block_keeps_the_order_of_its_records_and_names_each_that_is_bad() -> None:
    records = [
        Record(b'{"id": 1}'),
        Record(msgspec.msgpack.encode({"id": 2})),
        Record(b"id,3"),
        Record(avro({**ROW, "id": 4}), headers=[("Content-Type", b"Avro/Binary; v=1")]),
        Record(b""),
        Record(b' {"id": 6}', headers=[("content-type", b"application/octet-stream")]),
        Record(b'{"id": 7}', headers=[("content-type", b"application/msgpack")]),
        Record(b"8", headers=[("content-type", b"text/csv")]),
        Record(b"9", headers=[("content-type", b"application/protobuf")]),
        Record(b'{"id": 10}', headers=[("content-type", b"application/cloudevents+json")]),
        Record(b"\xef\xbb\xbf{}"),
    ]
    schemas = PayloadSchemas(AVRO, csv=["id"])
    batch = ParsedBatch.parse(
        WorkBatch(records), "auto", schema=pa.schema([("id", pa.int64())]), payload_schemas=schemas
    )
    assert batch.arrow.to_pydict() == {"id": [1, 2, 4, 6, 8, 10]}
    assert [letter.payload for letter in batch.dead_letters] == [records[row].value for row in (2, 4, 6, 8, 10)]
    unknown, empty, wrong, no_schema, mark = reasons(batch)
    assert "0x69" in unknown
    assert "JSON" in unknown
    assert "MessagePack" in unknown
    assert empty == "parse error: the value is empty"
    assert wrong.startswith("parse error: ")
    assert "protobuf" in no_schema
    assert "PayloadSchemas(protobuf=...)" in no_schema
    assert "0xef" in mark


def test_the_first_record_of_a_mixed_block_settles_the_type_of_a_field() -> None:
    values = [msgspec.msgpack.encode({"id": "text"}), b'{"id": 1, "n": 1}', msgspec.msgpack.encode({"id": 2, "n": 2.5})]
    batch = parsed(values, "auto")
    assert batch.arrow.to_pydict() == {"id": ["text", "1", "2"], "n": [None, 1.0, 2.5]}
    refused = parsed([b'{"id": 1}', msgspec.msgpack.encode({"id": "x"}), b'{"id": 3}'], "auto")
    assert refused.arrow.to_pydict() == {"id": [1, 3]}
    assert reasons(refused) == ["parse error: the field 'id' is a string here, and the column is int64"]


AVRO_VALUES: list[tuple[Any, Any, Any]] = [
    ({"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}, Decimal("-1.50"), "-1.50"),
    ({"type": "int", "logicalType": "date"}, date(2026, 1, 31), "2026-01-31"),
    (
        {"type": "long", "logicalType": "timestamp-millis"},
        datetime(2026, 1, 31, tzinfo=UTC),
    )
    * 1
    + (datetime(2026, 1, 31, tzinfo=UTC),),
    ({"type": "map", "values": "long"}, {"a": -1}, {"a": -1}),
    ({"type": "enum", "name": "E", "symbols": ["A", "B"]}, "B", "B"),
    ({"type": "fixed", "name": "F", "size": 2}, b"\x00\xff", b"\x00\xff"),
    (["null", "string", record_of("Inner", "float")], {"v": 0.5}, {"v": 0.5}),
    ("bytes", b"\xff", b"\xff"),
]


@pytest.mark.parametrize(("kind", "value", "expected"), AVRO_VALUES)
def test_avro_values_are_what_was_written(kind: Any, value: object, expected: object) -> None:
    schema = record_of("R", kind)
    found = parse_one(avro({"v": value}, schema), "avro", payload_schemas=PayloadSchemas(schema))
    assert found == {"v": expected}


@pytest.mark.parametrize(
    ("kind", "payload", "reason"),
    [
        (["null", "R"], b"\x02" * 100_000 + b"\x00", "deeper than 64"),
        ({"type": "array", "items": "null"}, b"\xfe\xff\xff\xff\x0f\x00", "without a byte"),
        ("bytes", b"\xfe\xff\xff\xff\xff\xff\xff\xff\x7fab", "wrong length"),
        ("bytes", b"\x03ab", "wrong length"),
        (["null", "int"], b"\x03", "branch -2"),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, b"\x01", "symbol -1"),
        ("string", b"\x02\xff", "UTF-8"),
        ("int", b"\x02\x02", "ends at byte 1"),
        ("boolean", b"\x02", "boolean"),
        ("long", b"\xff" * 11, "wrong number"),
        ({"type": "long", "logicalType": "timestamp-micros"}, b"\xfe" + b"\xff" * 7 + b"\x7f", "timestamp-micros"),
    ],
)
def test_hostile_avro_is_a_parse_error(kind: Any, payload: bytes, reason: str) -> None:
    with pytest.raises(ParseFailed, match=reason):
        parse_one(payload, "avro", payload_schemas=PayloadSchemas(record_of("R", kind)))


def test_an_avro_datum_of_nulls_alone_has_no_bytes_and_is_a_row() -> None:
    schemas = PayloadSchemas(record_of("R", "null"))
    assert parsed([b"", b"\x00"], "avro", payload_schemas=schemas).parsed == [{"v": None}]
    assert reasons(parsed([b""], "avro", payload_schemas=PayloadSchemas(record_of("R", "int")))) == [
        "parse error: the value is empty"
    ]


def test_avro_that_is_inside_itself_is_read_down_to_the_depth_limit() -> None:
    schema = record_of("R", ["null", "R"])
    deep = parse_one(b"\x02" * 63 + b"\x00", "avro", payload_schemas=PayloadSchemas(schema))
    assert json.dumps(deep).count("{") == 64
    with pytest.raises(ParseFailed, match="deeper than 64"):
        parse_one(b"\x02" * 64 + b"\x00", "avro", payload_schemas=PayloadSchemas(schema))


def test_protobuf_messages_are_rows_with_numbers_binary_and_times() -> None:
    schemas = PayloadSchemas(protobuf=ProtobufMessage(*message_class()))
    at = b"\x22\x06\x08\x80\xea\xf7\xcb\x06"  # field 4, a Timestamp of seconds
    batch = parsed([b"\x08\x07\x12\x01a\x12\x01b\x1a\x01\xff" + at, b"", b"\xff"], "protobuf", payload_schemas=schemas)
    first, empty = batch.parsed
    assert first["id"] == 7
    assert first["names"] == ["a", "b"]
    assert first["raw"] == b"\xff"
    assert isinstance(first["at"], datetime)
    assert empty == {"id": 0, "names": [], "raw": b""}
    assert reasons(batch) == ["parse error: this is no Protobuf message of the type t.Event"]


def test_protobuf_that_is_nested_deep_is_a_parse_error() -> None:
    schemas = PayloadSchemas(protobuf=ProtobufMessage(*message_class()))
    payload = b""
    for _ in range(90):
        size, prefix = len(payload), b""
        while size >= 0x80:
            prefix, size = prefix + bytes([size & 0x7F | 0x80]), size >> 7
        payload = b"\x2a" + prefix + bytes([size]) + payload
    with pytest.raises(ParseFailed, match="deeper than 64"):
        parse_one(payload, "protobuf", payload_schemas=schemas)


def test_a_protobuf_struct_is_its_json() -> None:
    message = struct_pb2.Struct()
    message.update({"a": [1, None, "x"], "b": {"c": True}})
    schemas = PayloadSchemas(protobuf=struct_pb2.Struct)
    assert parse_one(message.SerializeToString(), "protobuf", payload_schemas=schemas)["fields"]["b"] == {"c": True}


CSV_SCHEMA = pa.schema([SCHEMA.field(name) for name in ("id", "ok", "name")])


@pytest.mark.parametrize(
    ("line", "row"),
    [
        (b"1,true,x", (1, True, "x")),
        (b"1,,\r\n", (1, None, None)),
        (b'"1","False","say ""hi"", twice"\n', (1, False, 'say "hi", twice')),
        (b',,""', (None, None, "")),
        ('1,,"ä\nb"'.encode(), (1, None, "ä\nb")),
    ],
)
def test_a_csv_line_is_typed_by_its_columns(line: bytes, row: tuple[object, ...]) -> None:
    found = parse_as(
        pa.array([line], pa.binary()), CSV_SCHEMA, ParseFormat.CSV, payload_schemas=PayloadSchemas(csv=CSV_SCHEMA.names)
    )
    assert found.errors == ()
    assert tuple(found.batch.to_pylist()[0].values()) == row


@pytest.mark.parametrize(
    "line", [b"1,true", b"1,true,x,y", b'1,"x,y', b'1,"x"y,z', b"1,2,3\n4,5,6", b"\xff,,", b"", b"x,,"]
)
def test_a_line_that_is_no_row_is_a_parse_error(line: bytes) -> None:
    found = parse_as(
        pa.array([line], pa.binary()), CSV_SCHEMA, ParseFormat.CSV, payload_schemas=PayloadSchemas(csv=CSV_SCHEMA.names)
    )
    assert len(found.errors) == 1


def test_csv_may_have_another_delimiter() -> None:
    assert parse_one(b"1;2", "csv", payload_schemas=PayloadSchemas(csv=CsvColumns(["a", "b"], ";"))) == {
        "a": "1",
        "b": "2",
    }


def test_an_engine_takes_any_json_value_into_one_column() -> None:
    source, seen = MemoryTransport(), list[Any]()
    values = [
        b'{"b": [1, 2.50]}',
        b"[1]",
        b'"x"',
        b"-1.50",
        b"true",
        b" null ",
        b"{",
        b"1 2",
        b'{"a":1,"a":2}',
        b"[" * 65 + b"]" * 65,
    ]
    for value in values:
        source.inject(value)

    def process(batch: ParsedBatch) -> WorkBatch:
        seen.extend([batch.parsed, batch.arrow.to_pydict()])
        return WorkBatch([], batch.commit_tokens)

    BatchEngine(EngineConfig(parse_error_action="skip")).run(
        source, process, lambda _: None, parse="json-values", until_idle=True
    )
    assert seen[0] == [{"b": [1, 2.5]}, [1], "x", -1.5, True, None]
    assert seen[1] == {"value": ['{"b":[1,2.50]}', "[1]", '"x"', "-1.50", "true", "null"]}


@pytest.mark.parametrize("parse", ["json", 1, None, "JSON-values"])
def test_an_engine_refuses_another_parse(parse: Any) -> None:
    with pytest.raises(InvalidInput, match="parse must be True, False or 'json-values'"):
        BatchEngine().run(MemoryTransport(), lambda batch: batch, lambda _: None, parse=parse)


def test_schemas_can_be_pickled_and_compared() -> None:
    schemas = PayloadSchemas(AVRO, ProtobufMessage(*message_class()), ["a"])
    again = pickle.loads(pickle.dumps(schemas))
    assert again == schemas
    assert hash(again) == hash(schemas)
    assert parse_one(avro(ROW), "avro", payload_schemas=again) == ROW


@pytest.mark.parametrize(
    ("given_schemas", "words"),
    [
        ({"avro": "{"}, "Avro schema"),
        ({"avro": {"type": "recrd"}}, "Avro schema"),
        ({"protobuf": dict}, "message class"),
        ({"csv": "id,name"}, "list of column names"),
        ({"csv": ["a", "a"]}, "twice"),
        ({"csv": []}, "at least one"),
    ],
)
def test_what_is_no_schema_is_refused(given_schemas: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        PayloadSchemas(**given_schemas)


@pytest.mark.parametrize(
    ("missing", "schema", "extra"),
    [
        ("fastavro", {"avro": record_of("NotYetParsed", "long")}, "avro"),
        ("google.protobuf", {"protobuf": struct_pb2.Value}, "protobuf"),
    ],
)
def test_a_schema_whose_extra_is_not_installed_names_the_extra(
    monkeypatch: pytest.MonkeyPatch, missing: str, schema: dict[str, Any], extra: str
) -> None:
    for name in [one for one in sys.modules if one == missing or one.startswith(f"{missing}.")]:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(InvalidInput, match=rf"need the extra `{extra}`: pip install 'penstock\[{extra}\]'"):
        PayloadSchemas(**schema)


@pytest.mark.parametrize("form", ["avro", "protobuf", "csv"])
def test_a_format_without_its_schema_is_refused_before_a_run(form: str) -> None:
    with pytest.raises(InvalidInput, match=rf"parse_format '{form}' needs a schema"):
        EngineConfig(parse_format=form)


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("a.b", 1),
        ("c.1.d", "x"),
        ("c", [0, {"d": "x"}]),
        ("nope", None),
        ("a.nope.b", None),
        ("c.9", None),
        ("n", None),
        ("big", 10**30),
    ],
)
@pytest.mark.parametrize("encode", [lambda row: json.dumps(row).encode(), msgspec.msgpack.encode])
def test_a_field_is_found_by_its_path(encode: Callable[[Any], bytes], path: str, expected: object) -> None:
    row = {"a": {"b": 1}, "c": [0, {"d": "x"}], "n": None, "big": 10**30}
    if encode is msgspec.msgpack.encode:
        row.pop("big")
        expected = None if path == "big" else expected
    assert field(encode(row), path) == expected
    assert field(Record(encode(row)), path.split(".")) == expected


def test_a_field_of_other_formats_is_found_by_the_content_type() -> None:
    record = Record(avro(ROW), headers=AVRO_TYPE)
    assert field(record, "tags.0", payload_schemas=PayloadSchemas(AVRO)) == "a"


@pytest.mark.parametrize("encode", [lambda row: json.dumps(row).encode(), msgspec.msgpack.encode])
@pytest.mark.parametrize("name", ['a"b', "a\\", "a\nb", "\x00", "a.b", " ", "é", "\U0001f600", "0"])
def test_a_field_may_have_any_name(encode: Callable[[Any], bytes], name: str) -> None:
    row = {"x": 0, name: {name: 7}, "y": {name: 8}}
    assert field(encode(row), [name, name]) == 7
    assert field(encode({"x": 0}), [name]) is None


@pytest.mark.parametrize("path", ["a.b", "a.0", "b.0", "c.0", "a." + "9" * 5000, "l." + "9" * 5000, "l.9", "l.\u0661"])
@pytest.mark.parametrize("encode", [lambda row: json.dumps(row).encode(), msgspec.msgpack.encode])
def test_a_path_that_goes_on_behind_a_value_leads_to_nothing(encode: Callable[[Any], bytes], path: str) -> None:
    row = {"a": ord("{"), "b": ord("["), "c": "text", "l": [1, 2]}  # in MessagePack, small numbers are one byte
    assert field(encode(row), path) is None
    assert field(encode(row), path, "json-values" if encode is not msgspec.msgpack.encode else "msgpack") is None


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (b"\x81\xa1a\x81\x01\x02", "a key that is not a string"),
        (b"\x81\xa1a" * 65 + b"\x01", "deeper than 64"),
        (b"\x81\xa1a" + b"\x91" * 64 + b"\x01", "deeper than 64"),
    ],
)
def test_a_field_whose_value_breaks_a_rule_is_an_error_as_in_a_block(payload: bytes, reason: str) -> None:
    with pytest.raises(ParseFailed, match=reason):
        field(payload, "a")
    with pytest.raises(ParseFailed, match=reason):
        parse_one(payload, "msgpack")


@pytest.mark.parametrize("as_what", [bytes, bytearray, memoryview, Record])
def test_a_payload_may_be_any_bytes(as_what: Callable[[bytes], Any]) -> None:
    payload = as_what(b'{"a": 1}')
    assert parse_one(payload) == parse_one(payload, "auto") == {"a": field(payload, "a")} == {"a": 1}


@pytest.mark.parametrize("path", ["", ".", "a.", None, 5, b"a", ["a", 1], [], {"a": 1}])
def test_what_is_no_path_is_refused(path: Any) -> None:
    with pytest.raises(InvalidInput, match="path must be names"):
        field(b'{"a": 1}', path)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.text(max_size=3),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=3),
        max_leaves=12,
    ),
    st.lists(st.text(min_size=1, max_size=2) | st.sampled_from("012"), max_size=3),
)
def test_a_field_is_what_the_whole_payload_has_there(value: Any, path: list[str]) -> None:
    row, parts = {"v": value}, ["v", *path]
    expected: Any = row
    for part in parts:
        if isinstance(expected, dict):
            expected = expected.get(part)
        elif isinstance(expected, list) and part in ("0", "1", "2") and int(part) < len(expected):
            expected = expected[int(part)]
        else:
            expected = None
    assert field(json.dumps(row).encode(), parts) == field(msgspec.msgpack.encode(row), parts) == expected


CONTENT_TYPES: dict[bytes, tuple[ParseFormat, bytes]] = {
    b"application/json": (ParseFormat.JSON, b'{"id": 7}'),
    b"APPLICATION/JSON ; charset=UTF-8": (ParseFormat.JSON, b'{"id": 7}'),
    b"application/cloudevents+json; charset=utf-8": (ParseFormat.JSON, b'{"id": 7}'),
    b"application/x-msgpack": (ParseFormat.MSGPACK, b"\x81\xa2id\x07"),
    b"application/vnd.shop.v1+msgpack": (ParseFormat.MSGPACK, b"\x81\xa2id\x07"),
    b"application/vnd.apache.avro+binary": (ParseFormat.JSON, b'{"id": 7}'),  # not known: by the first byte
    b"application/x-avro": (ParseFormat.AVRO, b"\x0e"),
    b"application/vnd.shop.v1+avro": (ParseFormat.AVRO, b"\x0e"),
    b"text/csv; header=absent": (ParseFormat.CSV, b"7"),
    b"": (ParseFormat.JSON, b'{"id": 7}'),
    b"\xff\xfe": (ParseFormat.MSGPACK, b"\x81\xa2id\x07"),
    b";": (ParseFormat.MSGPACK, b"\x81\xa2id\x07"),
    b"x/y+xml": (ParseFormat.JSON, b'{"id": 7}'),
}


@pytest.mark.parametrize("content_type", CONTENT_TYPES)
@pytest.mark.parametrize("others", [0, 1, 3])
def test_a_content_type_is_found_alike_in_a_block_and_alone(content_type: bytes, others: int) -> None:
    form, payload = CONTENT_TYPES[content_type]
    schemas = PayloadSchemas(record_of("R", "long") | {"fields": [{"name": "id", "type": "long"}]}, csv=["id"])
    headers = [("x", b"1"), ("Content-Type", content_type), ("content-type", b"application/protobuf")]
    record = Record(payload, headers=headers)
    alone = parse_one(record, "auto", payload_schemas=schemas)
    assert alone == parse_one(payload, form, payload_schemas=schemas) == {"id": "7" if form == "csv" else 7}
    assert field(record, "id", payload_schemas=schemas) == alone["id"]
    batch = ParsedBatch.parse(WorkBatch([Record(b'{"id": 0}')] * others + [record]), "auto", payload_schemas=schemas)
    assert (batch.parsed[-1], len(batch)) == (alone, others + 1)


@pytest.mark.parametrize(
    "payload",
    [b"", b"oops", b"{", b"[1]", b'{"a": 1} x', b"\x81\xa1a", b'{"a": "\xff"}', b'{"a":' * 65 + b"1" + b"}" * 65],
)
def test_a_field_of_a_payload_that_does_not_parse_is_an_error(payload: bytes) -> None:
    with pytest.raises(ParseFailed, match=r"^parse error: "):
        field(payload, "a")
    with pytest.raises(ParseFailed, match=r"^parse error: "):
        parse_one(payload, "auto")
