"""`Pipeline.deduplicate`: rows whose keys came before, in this block or in an earlier one, are left out.

The keys that were let through are a Parquet table beside the checkpoint, with a position of its own. Those of a block
are committed after its dead letters and before its rows, and a block that comes again does not see its own: so it lets
the same rows through again. See `docs/design/pipeline.md`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import reduce
from typing import Any

import pyarrow as pa
from pyspark import StorageLevel
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812  the usual name

from penstock.core import get_logger
from penstock.errors import InvalidInput, StorageError
from penstock.spark.map_in_arrow import map_in_arrow, quoted
from penstock.spark.pipeline.steps import SEEN
from penstock.spark.tables.contract import BlockId
from penstock.spark.tables.parquet.table import ParquetTable, open_table

_KEY, _ORDER, _LAST_SEEN, _RANK = ("_penstock_" + name for name in ("key", "order", "last", "rank"))
_OURS = frozenset({_KEY, _ORDER, _LAST_SEEN, _RANK, SEEN})
_END, _QUERY = "end", "query"
_MAX_SECONDS = 36500 * 86400.0
# Spark's own formats end at milliseconds, and are in the time zone of the session, which may be another one next time.
_AS_TEXT = {
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
    "timeZone": "UTC",
}
_MARGIN_SECONDS = 60.0

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Deduplicate:
    """Which columns a row is known by, and for how many seconds."""

    keys: tuple[str, ...]
    within: float

    def __post_init__(self) -> None:
        if self.within > _MAX_SECONDS:
            raise InvalidInput(f"within must be at most {_MAX_SECONDS / 86400:.0f} days")

    def check(self, columns: Sequence[str]) -> None:
        """Raise `InvalidInput` for rows of these columns, where a key is none of them, or one has a name of ours."""
        missing = next((key for key in self.keys if key not in columns), None)
        if missing is not None:
            raise InvalidInput(f"deduplicate names the column {missing!r}, and the rows have {', '.join(columns)}")
        ours = next((name for name in columns if name.lower() in _OURS), None)
        if ours is not None:
            raise InvalidInput(f"the column {ours!r} cannot be used: deduplicate has one of that name itself")


@dataclass(frozen=True, slots=True)
class Deduplicated:
    """The rows of a block that are let through, and their keys, as the keys' table takes them."""

    rows: DataFrame
    keys: DataFrame
    persisted: DataFrame


class Deduplication:
    """The keys that a pipeline has let through."""

    def __init__(self, spark: Any, checkpoint: str, step: Deduplicate) -> None:
        self._spark = spark
        self._step = step
        self.table: ParquetTable = open_table(spark, f"{checkpoint.rstrip('/')}/penstock/keys")

    def apply(self, rows: DataFrame, block: BlockId) -> Deduplicated:
        """Leave out the rows of a block whose keys came before. `rows` have the time of each in `SEEN`."""
        columns = [F.col(quoted(key)) for key in self._step.keys]
        has_key = reduce(lambda one, other: one & other, [column.isNotNull() for column in columns])
        # 128 bits of all keys: two that differ are not taken for one.
        key = F.when(has_key, F.unhex(F.md5(F.to_json(F.struct(*columns), _AS_TEXT))))
        keyed = rows.withColumn(_ORDER, F.monotonically_increasing_id()).withColumn(_KEY, key)
        fresh = self._without_earlier(keyed, block)
        # In the order of the events again: a merge without `order_by` goes by it.
        kept = self._first_of_each(fresh).orderBy(_ORDER).persist(StorageLevel.MEMORY_AND_DISK)
        keys = kept.where(F.col(_KEY).isNotNull()).select(
            F.col(_KEY).alias("key"),
            F.col(SEEN).alias("seen"),
            F.lit(block.end).cast("bigint").alias(_END),
            F.lit(block.query).alias(_QUERY),
        )
        return Deduplicated(kept.drop(_KEY, _ORDER, SEEN), keys, kept)

    def forget_before(self, oldest: float) -> None:
        """Remove keys that cannot count any more, where the oldest event that waits came in at that time."""
        before = datetime.fromtimestamp(oldest - self._step.within - _MARGIN_SECONDS, UTC)
        try:
            self.table.drop_blocks_before(before)
        except StorageError as error:
            _log.warning("keys that do not count any more stay in %s, and use space: %s", self.table.url, error)

    def _without_earlier(self, keyed: DataFrame, block: BlockId) -> DataFrame:
        state = self.table.blocks.state()
        if not state.names and state.compacted is None:
            return keyed
        is_earlier = (F.col(_QUERY) == block.query) & (F.col(_END) <= block.first)
        known = self.table.read(self._spark).where(is_earlier)
        last = known.groupBy(F.col("key").alias(_KEY)).agg(F.max("seen").alias(_LAST_SEEN))
        is_new = F.col(_LAST_SEEN).isNull() | (F.col(SEEN) > F.col(_LAST_SEEN) + F.lit(self._within))
        return keyed.join(last, _KEY, "left").where(is_new).drop(_LAST_SEEN)

    def _first_of_each(self, rows: DataFrame) -> DataFrame:
        """The first row of each key; and a later one that came in longer after it than `within`."""
        span = rows.agg((F.max(SEEN).cast("double") - F.min(SEEN).cast("double")).alias("span")).collect()[0]["span"]
        without_key, rest = rows.where(F.col(_KEY).isNull()), rows.where(F.col(_KEY).isNotNull())
        if span is None or span <= self._step.within:
            rank = F.row_number().over(Window.partitionBy(_KEY).orderBy(_ORDER))
            kept = rest.withColumn(_RANK, rank).where(F.col(_RANK) == 1).drop(_RANK)
        else:
            by_key = rest.repartition(_KEY).sortWithinPartitions(_KEY, _ORDER)
            kept = map_in_arrow(by_key, _FirstWithin(self._within), rest.schema)
        return without_key.unionByName(kept)

    @property
    def _within(self) -> timedelta:
        return timedelta(seconds=self._step.within)


@dataclass(frozen=True, slots=True)
class _FirstWithin:
    """Of rows that are sorted by their keys, those that came in longer than a time after the last one it has kept."""

    within: timedelta

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        within = round(self.within / timedelta(microseconds=1))
        key: bytes | None = None
        until = 0
        for batch in batches:
            keys: list[Any] = batch.column(_KEY).to_pylist()
            times: list[Any] = batch.column(SEEN).cast(pa.int64()).to_pylist()
            kept: list[int] = []
            for row, (one, at) in enumerate(zip(keys, times, strict=True)):
                if one != key or at > until:
                    key, until = one, at + within
                    kept.append(row)
            yield batch.take(pa.array(kept, pa.int64()))
