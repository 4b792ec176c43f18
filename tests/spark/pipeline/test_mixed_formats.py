"""A stream of JSON, MessagePack and Avro: the engine and Spark make the same table of it."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import fastavro
import msgspec
import pyarrow as pa
from pyspark.sql import SparkSession

from penstock import Record
from penstock.engine import BatchEngine, DlqPolicy, EngineConfig, MemoryTransport, PayloadSchemas, columns
from tests.support.pipeline_places import Places

AVRO = {
    "type": "record",
    "name": "Event",
    "fields": [{"name": "id", "type": "long"}, {"name": "event", "type": "string"}],
}
SCHEMAS = PayloadSchemas(AVRO, csv=["id", "event"])


def encoded(number: int) -> Record:
    row = {"id": number, "event": f"e{number}"}
    if number % 3 == 0:
        return Record(json.dumps(row).encode())
    if number % 3 == 1:
        return Record(msgspec.msgpack.encode(row), headers=[("trace", b"1")])
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(AVRO), row)
    return Record(out.getvalue(), headers=[("trace", b"1"), ("Content-Type", b"avro/binary")])


RECORDS = [*map(encoded, range(60)), Record(b"oops"), Record(b"\x00", headers=[("content-type", b"application/avro")])]


def in_the_engine() -> tuple[list[dict[str, Any]], list[tuple[bytes, str]]]:
    source, rows, letters = MemoryTransport(), list[dict[str, Any]](), list[tuple[bytes, str]]()
    source.send(RECORDS)
    route = DlqPolicy.route(lambda found: letters.extend((letter.payload, letter.reason) for letter in found))
    BatchEngine(EngineConfig(parse_format="auto", payload_schemas=SCHEMAS), dlq=route).run(
        source,
        columns(lambda batch: batch),
        lambda batch: rows.extend(batch.arrow.to_pylist()),
        parse=True,
        until_idle=True,
    )
    return rows, letters


def test_a_mixed_stream_is_the_same_table_in_the_engine_and_on_spark(spark: SparkSession, tmp_path: Path) -> None:
    places = Places(tmp_path)
    places.put(RECORDS[:20], RECORDS[20:])
    places.pipeline().parse("auto", "id bigint, event string", payload_schemas=SCHEMAS).dead_letters(
        places.dead_letters
    ).to_parquet(places.table).run(spark, "available_now")
    rows, letters = in_the_engine()
    assert len(rows) == 60
    assert sorted(places.rows(), key=lambda row: row["id"]) == rows
    found = pa.Table.from_pylist(places.letters()).select(["payload", "reason"]).to_pylist()
    assert sorted((letter["payload"], letter["reason"]) for letter in found) == sorted(letters)
    assert len(letters) == 2


def test_any_json_value_is_the_same_table_in_the_engine_and_on_spark(spark: SparkSession, tmp_path: Path) -> None:
    values = [b'{"b": [1, 2.50]}', b"[1]", b'"x"', b"-1.50", b" null ", b"{", b"1 2", b"", b'{"a":1,"a":2}']
    places, source, rows, letters = Places(tmp_path), MemoryTransport(), list[dict[str, Any]](), list[str]()
    places.put(values)
    places.pipeline().parse("json-values", "value string").dead_letters(places.dead_letters).to_parquet(
        places.table
    ).run(spark, "available_now")
    source.send(map(Record, values))
    route = DlqPolicy.route(lambda found: letters.extend(letter.reason for letter in found))
    BatchEngine(dlq=route).run(
        source,
        columns(lambda batch: batch),
        lambda batch: rows.extend(batch.arrow.to_pylist()),
        parse="json-values",
        until_idle=True,
    )
    assert [row["value"] for row in rows] == ['{"b":[1,2.50]}', "[1]", '"x"', "-1.50", "null"]
    assert places.rows() == sorted(rows, key=str)
    assert sorted(letter["reason"] for letter in places.letters()) == sorted(letters)
    assert len(letters) == 4
