"""The same payloads in `BatchEngine` and on Spark's executors: the same rows, and the same dead letters and reasons."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from penstock import BatchDescriptor, Record
from penstock.engine import (
    BatchEngine,
    DlqPolicy,
    EngineConfig,
    MemoryTransport,
    ParseFormat,
    WorkBatch,
    columns,
    infer_schema,
)
from penstock.records import records_to_arrow
from penstock.spark.pipeline.dead_letters import LETTER, unpacked
from penstock.spark.pipeline.steps import Parse, PipelineRows
from penstock.spark.source.options import OnError
from penstock.spark.source.reading import Chunk
from penstock.spark.source.rows import ParsedRows
from penstock.spark.source.schemas import SET_ASIDE
from tests.engine.parsing.models import READ
from tests.support.pipeline_places import Places

JSON, MSGPACK = ParseFormat.JSON, ParseFormat.MSGPACK
Outcome = tuple[list[str], list[tuple[bytes, str]]]

NAMES = st.sampled_from(["a", "b", "c", "é", ""])
SCALARS = st.one_of(
    *(st.none(), st.booleans(), st.integers(-9, 9), st.integers(-(1 << 63), (1 << 64) - 1), st.floats(allow_nan=False)),
    st.sampled_from(["x", "😀", "2026-01-01T00:00:00Z", "aGk=", '": 1, "a": ', "\u2028"]),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(NAMES, inner, max_size=3)),
    max_leaves=6,
)
FITTING = st.fixed_dictionaries(
    {"a": st.integers(0, 9)},
    optional={
        "b": st.fixed_dictionaries({"c": st.floats(0, 1)}, optional={"a": st.integers(0, 9)}),
        "c": st.text(max_size=3),
    },
)

ROWS = st.one_of(FITTING, FITTING, st.dictionaries(NAMES, VALUES, max_size=4))
DEEP, HUGE = b"[" * 70, b"9" * 5000
PIECES = {
    JSON: [
        *(b'"a": 1, "a": 2, ', b'"a":1,"\\u0061":1,', b'"c" : {"a": 1, "a": 1},', b'"\\ud800"', b"\xed\xa0\x80"),
        *(
            b"NaN",
            b"1e999",
            b"9" * 400,
            HUGE,
            b"-0",
            b"1.0",
            b"null",
            b"{}",
            b"{",
            b"}",
            DEEP,
            b'"',
            b",",
            b"\n",
            b"\xff",
        ),
    ],
    MSGPACK: [
        *(b"\xc1", b"\x82\xa1a\x01\xa1a\x02", b"\xa1\xff", b"\xcb", b"\x91" * 70, b"\x01", b"\xc4\x01x", b"\x80"),
        *(b"\xd4\x05x", b"\xd6\xff\0\0\0\x01", b"\xcf" + b"\xff" * 8, b"\xdf\xff\xff\xff\xff", b"\xca\0\0\0\0"),
    ],
}


@st.composite
def payloads(draw: st.DrawFn, form: ParseFormat) -> bytes:
    """An object, often with a part replaced, repeated or cut off."""
    row = draw(ROWS)
    text = json.dumps(row, ensure_ascii=draw(st.booleans())).replace("Infinity", "1e999")
    payload = text.encode() if form is JSON else msgspec.msgpack.encode(row)
    for _ in range(draw(st.sampled_from([0, 0, 0, 1, 2]))):
        start = draw(st.sampled_from([1, draw(st.integers(0, len(payload)))]))
        end = draw(st.sampled_from([start, start, len(payload), draw(st.integers(start, len(payload)))]))
        payload = payload[:start] + draw(st.sampled_from(PIECES[form])) + payload[end:]
    return payload


def doubled(payload: bytes, form: ParseFormat) -> bytes:
    """A map of at most seven members with each of them twice."""
    if form is JSON:
        return payload[:-1] + b"," + payload[1:] if payload.startswith(b"{") and payload != b"{}" else payload
    size = payload[0] & 0x0F if payload and 0x80 <= payload[0] <= 0x87 else 0
    return bytes([0x80 + 2 * size]) + payload[1:] * 2 if size else payload


def in_engine(values: list[bytes], form: ParseFormat) -> Outcome:
    source, rows, letters = MemoryTransport(), list[Any](), list[Any]()
    source.send(map(Record, values))

    def sink(batch: WorkBatch) -> None:
        rows.extend(map(repr, batch.arrow.to_pylist()))

    engine = BatchEngine(EngineConfig(recv_timeout=0, parse_format=form), dlq=DlqPolicy.route(letters.extend))
    engine.run(source, columns(lambda batch: batch), sink, parse=True, until_idle=True)
    return rows, [(letter.payload, letter.reason) for letter in letters]


def chunk(values: list[bytes]) -> Chunk:
    return Chunk(records_to_arrow([*map(Record, values)]), 0, BatchDescriptor(0, "x"), "memory://x")


def in_a_pipeline(values: list[bytes], form: ParseFormat, schema: StructType) -> Outcome:
    """What a task of a pipeline makes of them."""
    table = pa.Table.from_batches(PipelineRows(schema, (), Parse(form, schema, OnError.DLQ)).of(chunk(values)))
    rows = table.filter(table.column(LETTER).is_null()).drop_columns([LETTER])
    packed = table.filter(table.column(LETTER).is_valid()).select([LETTER])
    letters = [row for batch in unpacked(packed.to_batches(), 0) for row in batch.to_pylist()]
    return [*map(repr, rows.to_pylist())], [(letter["payload"], letter["reason"]) for letter in letters]


def in_a_read(values: list[bytes], form: ParseFormat, schema: StructType) -> Outcome:
    """What a task of `spark.read` makes of them."""
    names = schema.fieldNames()
    table = pa.Table.from_batches(ParsedRows(StructType([*schema, *SET_ASIDE]), form, OnError.DLQ).of(chunk(values)))
    rows = [row for row in table.to_pylist() if row["_error"] is None]
    letters = [(row["_raw"], row["_error"]) for row in table.to_pylist() if row["_error"] is not None]
    return [repr({name: row[name] for name in names}) for row in rows], letters


def has_other_members(value: Any, kind: pa.DataType) -> bool:
    """Whether a decoded payload has a member that the columns do not have: the engine refuses it, Spark ignores it."""
    if pa.types.is_struct(kind) and isinstance(value, dict):
        types = {field.name: field.type for field in kind}
        return any(name not in types or has_other_members(inner, types[name]) for name, inner in value.items())
    return (
        pa.types.is_list(kind)
        and isinstance(value, list)
        and any(has_other_members(one, kind.value_type) for one in value)
    )


def compare(values: list[bytes], form: ParseFormat) -> None:
    schema = infer_schema(pa.array(values, pa.binary()), form)
    decode = json.loads if form is JSON else msgspec.msgpack.decode
    rows, letters = in_engine(values, form)
    # The engine's own rule: every member has a column. It is for those that nothing could be learned from.
    given = [value for value in values if not _has_other_members(decode, value, pa.struct(list(schema)))]
    refused = [value for value in values if value not in given]
    assert set(refused) <= {payload for payload, _ in letters}
    letters = [letter for letter in letters if letter[0] not in refused]
    spark_schema = from_arrow_schema(schema)
    assert in_a_pipeline(given, form, spark_schema) == (rows, letters)
    if not {"_error", "_raw"} & set(schema.names):
        assert in_a_read(given, form, spark_schema) == (rows, letters)


def _has_other_members(decode: Any, value: bytes, kind: pa.DataType) -> bool:
    try:
        return has_other_members(decode(value), kind)
    except (ValueError, RecursionError, msgspec.DecodeError):
        return False


@settings(max_examples=250, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data(), st.sampled_from(READ))
def test_every_payload_is_the_same_row_or_the_same_letter_in_both(data: st.DataObject, form: ParseFormat) -> None:
    values = data.draw(st.lists(payloads(form), min_size=1, max_size=12))
    for at in data.draw(st.lists(st.integers(0, len(values) - 1), max_size=2)):
        values[at] = doubled(values[at], form)
    compare(values, form)


EXAMPLES: list[Any] = [
    *({"a": 1, "b": {"c": 0.5, "a": 2}, "c": "x"}, {"a": 2, "b": {"c": 3}}, {"a": None}, {}, {"c": {"d": [1, None]}}),
    *({"a": "x"}, {"a": 1.5}, {"a": 1 << 63}, {"b": []}, {"b": {"c": "x"}}, {"a": True}, [], None, 7),
]
TEXTS = [
    *(
        b"",
        b"{",
        b'{"a": 1}{"a": 2}',
        b'{"a": 1, "a": 2}',
        b'{"b": {"c": 1, "c": 2}}',
        b'{"c": "\\ud800"}',
        b'{"c": "\xff"}',
    ),
    *(b'{"a": NaN}', b'{"c":' + b"[" * 64 + b"]" * 64 + b"}"),
]
PACKED = [b"\x82\xa1a\x01\xa1a\x02", b"\x81\xa1a", b"\x81\xa1a\x01\xc0", b"\x81\xa1c\xa1\xff", b"\x81\x01\x02"]
BLOCKS = {
    JSON: [*map(msgspec.json.encode, EXAMPLES), *TEXTS],
    MSGPACK: [*map(msgspec.msgpack.encode, EXAMPLES), *PACKED],
}
SCHEMA = "a double, b struct<c: double, a: bigint>, c string"


@pytest.mark.parametrize("form", READ)
def test_a_pipeline_of_a_real_session_gives_the_same_rows_and_letters(
    form: ParseFormat, spark: Any, tmp_path: Path
) -> None:
    values, places = BLOCKS[form], Places(tmp_path)
    places.put([*map(Record, values)])
    pipeline = places.pipeline().parse(form, SCHEMA).dead_letters(places.dead_letters).to_parquet(places.table)
    pipeline.run(spark, "available_now")
    rows, letters = in_engine(values, form)
    assert sorted(map(repr, places.rows())) == sorted(rows) != []
    found = [(letter["payload"], letter["reason"]) for letter in places.letters()]
    assert sorted(found) == sorted(letters) != []
