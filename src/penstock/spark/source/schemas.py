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

from penstock.engine import check_columns
from penstock.errors import InvalidInput
from penstock.spark.source.options import OnCorruptBatch, OnError, ReadFormat, ReadOptions

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
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(schema, timezone="UTC")


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
    if sets_aside or options.on_error is OnError.DLQ:
        return f"{options.columns}, {ERROR} string, {RAW} binary"
    return options.columns


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
    parsed = parsed_columns(schema)
    check_columns(to_arrow(parsed))
    required = next((field.name for field in parsed if not field.nullable), None)
    sets_aside = options.on_error is OnError.DLQ or options.on_corrupt_batch is OnCorruptBatch.DLQ
    if required is not None and sets_aside and {ERROR, RAW} & set(names):
        raise InvalidInput(
            f"the column {required!r} is NOT NULL, and rows that are set aside have nulls: leave NOT NULL out, or set "
            "nothing aside (onError=skip or fail, onCorruptBatch=fail)"
        )


def parsed_columns(schema: StructType) -> StructType:
    """The columns that are parsed: all but those for what is set aside."""
    return StructType([field for field in schema if field.name not in {ERROR, RAW}])
