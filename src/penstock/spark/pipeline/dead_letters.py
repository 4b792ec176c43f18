"""Dead letters on their way from the executors to their table.

In a block a letter is one value in one column, which is null for every other row: with a column for each of its fields
every row would carry more than its own data.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeAlias, cast

import pyarrow as pa
from pyspark.sql.types import BinaryType, IntegerType, LongType, StringType, StructField, StructType, TimestampType

from penstock.engine import DeadLetter
from penstock.records import Headers
from penstock.spark.source.schemas import HEADERS, to_arrow

LETTER = "_dead_letter"

TABLE = StructType(
    [
        StructField("payload", BinaryType()),
        StructField("key", BinaryType()),
        StructField("headers", HEADERS),
        StructField("reason", StringType()),
        StructField("stage", StringType()),
        StructField("sequence", LongType()),
        StructField("index", IntegerType()),
        StructField("at", TimestampType()),
        StructField("timestamp", TimestampType()),
    ]
)

Letter: TypeAlias = tuple[
    bytes | None, bytes | None, Headers | None, str, str, int | None, int | None, int | None
]  # payload, key, headers, reason, stage, sequence, index, timestamp in milliseconds


def letter_of(letter: DeadLetter, sequence: int | None = None, index: int | None = None) -> Letter:
    """A dead letter of the engine, and where its record was."""
    headers = cast("Headers | None", letter.headers)
    return letter.payload, letter.key, headers, letter.reason, letter.stage, sequence, index, letter.timestamp_ms


def packed(letters: Sequence[Letter]) -> pa.Array[Any]:
    """The one column that letters are in a block."""
    import msgspec

    return pa.array([msgspec.msgpack.encode(letter) for letter in letters], pa.binary())


def reason_in(value: bytes) -> str:
    """The reason of a letter in a block."""
    import msgspec

    letter: Letter = msgspec.msgpack.decode(value, type=Letter)
    return letter[3]


def unpacked(batches: Iterable[pa.RecordBatch], at: int) -> Iterator[pa.RecordBatch]:
    """The rows of the dead-letter table, of batches with the one column. `at` is in microseconds since 1970."""
    import msgspec

    schema = to_arrow(TABLE)
    decoder = msgspec.msgpack.Decoder(Letter)
    for batch in batches:
        letters = [decoder.decode(cast("bytes", value)) for value in batch.column(0).to_pylist()]
        columns: list[list[Any]] = [list(column) for column in zip(*letters, strict=True)] or [[] for _ in range(8)]
        columns[2] = [headers and [{"key": key, "value": value} for key, value in headers] for headers in columns[2]]
        timestamps = [None if one is None else one * 1000 for one in columns.pop()]
        columns += [[at] * len(letters), timestamps]
        arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
        yield pa.RecordBatch.from_arrays(cast("Any", arrays), schema=schema)
