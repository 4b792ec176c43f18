"""`parseMode`, `rescue` and `timestampUnit` of a read: what the parser makes of the payloads, in a read as well."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import LongType, StringType, StructField, StructType

from penstock import BatchDescriptor, Record
from penstock.engine import ParseFormat, ParseOptions, parse_as
from penstock.errors import InvalidInput
from penstock.records import records_to_arrow
from penstock.spark import register
from penstock.spark.source.options import OnError, ReadOptions
from penstock.spark.source.reading import Chunk
from penstock.spark.source.rows import ParsedRows
from penstock.spark.source.schemas import SET_ASIDE, check_schema, columns_of
from tests.engine.parsing.models import READ
from tests.engine.parsing.test_parse_option_properties import OPTIONS, SCHEMAS, payloads
from tests.support.backlogs import Backlog

RESCUED = StructField("_rescued", StringType())


def of(**given: str) -> ReadOptions:
    return ReadOptions.of({"path": "s3://bucket/events", "format": "json", "columns": "id bigint", **given})


def test_options_are_those_of_the_parser() -> None:
    assert of().parse_options == ParseOptions()
    options = of(parseMode="lenient", rescue="_rescued", timestampUnit="ms").parse_options
    assert options == ParseOptions("lenient", "_rescued", "ms")
    by_column = of(TIMESTAMPUNIT="at=ms, meta.at = s").parse_options
    assert by_column == ParseOptions(timestamp_unit={"at": "ms", "meta.at": "s"})


@pytest.mark.parametrize(
    ("given", "text"),
    [({"parseMode": "loose"}, "parseMode must be one of strict, lenient, not 'loose'"),
     ({"timestampUnit": "h"}, "timestampUnit must be one of s, ms, us, ns, not 'h'"),
     ({"timestampUnit": "at=h"}, "timestampUnit must be one of s, ms, us, ns, not 'h'"),
     ({"timestampUnit": "=ms"}, "timestampUnit must be a unit, or units of columns"),
     ({"rescue": ""}, "rescue must be the name of a column")],
)  # fmt: skip
def test_what_is_no_such_option_is_refused_by_name(given: dict[str, str], text: str) -> None:
    with pytest.raises(InvalidInput, match=text):
        of(**given)


@pytest.mark.parametrize("name", ["parseMode=lenient", "rescue=x", "timestampUnit=s"])
def test_an_unparsed_read_has_no_such_option(name: str) -> None:
    option, _, value = name.partition("=")
    with pytest.raises(InvalidInput, match="say how json or msgpack is parsed: give format too"):
        ReadOptions.of({"path": "s3://bucket/events", option: value})


def test_columns_get_one_more_for_fields_that_have_none() -> None:
    assert columns_of(of(rescue="a`b")) == "id bigint, `a``b` string, _error string, _raw binary"
    assert columns_of(of(rescue="x", onError="skip")) == "id bigint, `x` string"


@pytest.mark.parametrize(
    ("schema", "given", "text"),
    [(StructType([]), {"rescue": "_rescued"}, "rescue names the column '_rescued': name it in the schema too"),
     (StructType([StructField("_rescued", LongType())]), {"rescue": "_rescued"}, "must be a string that may be null"),
     (StructType([StructField("r", StringType(), False)]), {"rescue": "r"}, "must be a string that may be null"),
     (StructType([*SET_ASIDE]), {"rescue": "_error"}, "'_error', which is for what is set aside"),
     (StructType([StructField("id", LongType())]), {"timestampUnit": "id=s"}, "'id', which is int64, no timestamp"),
     (StructType([StructField("id", LongType())]), {"timestampUnit": "x=s"}, "'x', which the schema does not have")],
)  # fmt: skip
def test_a_schema_that_does_not_go_with_the_options_is_refused(
    schema: StructType, given: dict[str, str], text: str
) -> None:
    with pytest.raises(InvalidInput, match=text):
        check_schema(schema, of(**given))


@settings(max_examples=settings().max_examples, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data(), SCHEMAS, st.sampled_from(READ), OPTIONS)
def test_a_read_gives_the_rows_and_the_reasons_of_the_parser(
    data: st.DataObject, schema: pa.Schema, form: ParseFormat, options: ParseOptions
) -> None:
    values = data.draw(st.lists(payloads(schema, form), min_size=1, max_size=6))
    parsed = parse_as(pa.array(values, pa.binary()), schema, form, options)
    extra = [RESCUED] if options.rescue else []
    named = StructType([*SET_ASIDE, *extra, *from_arrow_schema(schema, prefer_timestamp_ntz=True)])
    chunk = Chunk(records_to_arrow([*map(Record, values)]), 0, BatchDescriptor(0, "x"), "memory://x")
    found = pa.Table.from_batches(ParsedRows(named, form, OnError.DLQ, options).of(chunk)).to_pylist()
    rows = [{name: row[name] for name in parsed.batch.schema.names} for row in found if row["_error"] is None]
    assert [*map(repr, rows)] == [*map(repr, parsed.batch.to_pylist())]
    letters = [(row["_raw"], row["_error"]) for row in found if row["_error"] is not None]
    assert letters == [(values[error.index], error.reason) for error in parsed.errors]


@pytest.mark.parametrize("form", ["json", "msgpack"])
def test_a_lenient_read_of_a_real_session(form: str, spark: Any, backlog: Backlog) -> None:
    rows: list[Any] = [
        {"id": "42", "meta": {"at": 1_769_860_800_000, "who": "x"}, "new": [1]},
        {"id": 1, "meta": None},
        {"id": "x"},
    ]
    encode = msgspec.json.encode if form == "json" else msgspec.msgpack.encode
    backlog.put([encode(row) for row in rows])
    register(spark)
    reader = (
        spark.read.format("penstock").option("format", form).option("columns", "id int, meta struct<at: timestamp>")
    )
    reader = reader.option("parseMode", "lenient").option("rescue", "_rescued").option("timestampUnit", "meta.at=ms")
    found = reader.load(backlog.url).collect()
    good = sorted((row for row in found if row["_error"] is None), key=lambda row: -row["id"])
    assert [row["id"] for row in good] == [42, 1]
    assert good[0]["meta"]["at"].astimezone(UTC) == datetime(2026, 1, 31, 12, tzinfo=UTC)
    assert [row["_rescued"] and json.loads(row["_rescued"]) for row in good] == [
        {"meta": {"who": "x"}, "new": [1]},
        None,
    ]
    assert [row["_error"] for row in found if row["_error"]] == [
        "parse error: the field 'id' is a string that is no int32"
    ]
