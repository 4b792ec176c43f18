"""The columns that a read gives: Spark's types, and the Arrow types that Spark expects for them."""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from penstock.engine import ParseFormat, check_columns
from penstock.errors import InvalidInput
from penstock.spark.source.options import OnCorruptBatch, OnError, ReadFormat, ReadOptions
from penstock.spark.versions import arrow_schema

ERROR, RAW = "_error", "_raw"

HEADERS = ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())]))

RECORD_FIELDS = (
    StructField("key", BinaryType()),
    StructField("value", BinaryType()),
    StructField("headers", HEADERS),
    StructField("timestamp", TimestampType()),
)
UNPARSED = StructType(
    [
        *RECORD_FIELDS,
        StructField("sequence", LongType()),
        StructField("index", IntegerType()),
        StructField("ingestion_time", TimestampType()),
        StructField("metadata", BinaryType()),
    ]
)
SET_ASIDE = (StructField(ERROR, StringType()), StructField(RAW, BinaryType()))


def to_arrow(schema: StructType) -> pa.Schema:
    """The Arrow schema that Spark expects of a batch with these columns: timestamps are instants, in UTC."""
    return arrow_schema(schema)


def columns_of(options: ReadOptions) -> StructType | str:
    """What a read gives where the user names no schema: columns, or their DDL. Raises `InvalidInput`."""
    sets_aside = options.on_corrupt_batch is OnCorruptBatch.DLQ
    if options.format is ReadFormat.RAW:
        return StructType([*UNPARSED, *SET_ASIDE]) if sets_aside else UNPARSED
    if options.columns is None:
        raise InvalidInput(
            f"format {options.format} needs to know its columns: give .schema(...), or the option columns, for example "
            "columns='id bigint, event string'"
        )
    columns = options.columns
    if options.rescue is not None:
        columns += f", `{options.rescue.replace('`', '``')}` string"
    if sets_aside or options.on_error is OnError.DLQ:
        columns += f", {ERROR} string, {RAW} binary"
    return columns


def check_schema(schema: StructType, options: ReadOptions) -> None:
    """Refuse a schema that this read cannot give. Raises `InvalidInput` naming the column."""
    names = schema.fieldNames()
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise InvalidInput(f"the column {twice!r} is there twice")
    is_raw = options.format is ReadFormat.RAW
    known = {field.name: field.dataType for field in (*(UNPARSED if is_raw else ()), *SET_ASIDE)}
    for field in schema:
        wanted = known.get(field.name)
        if wanted is None and is_raw:
            raise InvalidInput(
                f"the column {field.name!r} is none of an unparsed read: {', '.join(UNPARSED.fieldNames())}; to parse "
                "payloads, give the option format"
            )
        if wanted is not None and field.dataType != wanted:
            kind = field.dataType.simpleString()
            raise InvalidInput(f"the column {field.name!r} is {wanted.simpleString()}, not {kind}")
    if options.on_corrupt_batch is OnCorruptBatch.DLQ and ERROR not in names:
        raise InvalidInput(f"onCorruptBatch=dlq puts a row with {ERROR!r} in place of a batch: name it in the schema")
    if is_raw:
        return
    parsed = parsed_columns(schema, _checked_rescue(schema, options.rescue))
    check_columns(to_arrow(parsed), ParseFormat(options.format.value))
    options.parse_options.check(to_arrow(parsed))
    required = next((field.name for field in parsed if not field.nullable), None)
    sets_aside = options.on_error is OnError.DLQ or options.on_corrupt_batch is OnCorruptBatch.DLQ
    if required is not None and sets_aside and {ERROR, RAW} & set(names):
        raise InvalidInput(
            f"the column {required!r} is NOT NULL, and rows that are set aside have nulls: leave NOT NULL out, or set "
            "nothing aside (onError=skip or fail, onCorruptBatch=fail)"
        )


def parsed_columns(schema: StructType, rescue: str | None = None) -> StructType:
    """The columns that are parsed: all but those for what is set aside, and for fields that have no column."""
    return StructType([field for field in schema if field.name not in {ERROR, RAW, rescue}])


def _checked_rescue(schema: StructType, rescue: str | None) -> str | None:
    """The name of the column for fields that have none. Raises `InvalidInput` unless it is one of text."""
    if rescue is None:
        return None
    if rescue in {ERROR, RAW}:
        raise InvalidInput(f"rescue names the column {rescue!r}, which is for what is set aside: give another name")
    if rescue not in schema.fieldNames():
        raise InvalidInput(f"rescue names the column {rescue!r}: name it in the schema too, as a string")
    field = schema[rescue]
    if field.dataType != StringType() or not field.nullable:
        raise InvalidInput(f"the column {rescue!r}, which rescue names, must be a string that may be null")
    return rescue
