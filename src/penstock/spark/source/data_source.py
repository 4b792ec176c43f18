"""The data source `penstock`: `spark.read`, `readStream`, `write` and `writeStream` with `format("penstock")`."""

from __future__ import annotations

import os
from typing import ClassVar, TypeVar

from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from penstock.engine import ByteBudgetConfig
from penstock.errors import InvalidInput
from penstock.spark.sessions import cores_of, hide_credentials, is_session, use_this_python
from penstock.spark.source.admission import BUDGET
from penstock.spark.source.batch_reader import BufferReader
from penstock.spark.source.commit_reader import CommitStreamReader
from penstock.spark.source.options import ReadOptions
from penstock.spark.source.reading import Rows
from penstock.spark.source.rows import rows_for
from penstock.spark.source.schemas import check_schema, columns_of
from penstock.spark.source.stream_reader import BufferStreamReader
from penstock.spark.source.unknown_options import NO_TABLES
from penstock.spark.source.writing import BufferStreamWriter, BufferWriter
from penstock.spark.versions import (
    HAS_ADMISSION,
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    check_data_sources,
)

_Source = TypeVar("_Source", bound="PenstockDataSource")


class PenstockDataSource(DataSource):
    """Reads and writes buffers. `register(spark)` makes it known to a session as `penstock`.

    The options are in the documentation of the data source. Errors raised in planning or on an executor reach the
    user as Spark's own exceptions; their text has ours in it, for example `penstock.errors.Fenced: ...`.
    """

    cores: ClassVar[int | None] = None
    """How many tasks run at once; None where the session's number is not known."""

    budget: ClassVar[ByteBudgetConfig] = BUDGET
    """The numbers of self-regulation."""

    has_admission: ClassVar[bool] = HAS_ADMISSION
    """Whether Spark tells where a stream's next block starts."""

    @classmethod
    def name(cls) -> str:
        """The word after `format`."""
        return "penstock"

    def schema(self) -> StructType | str:
        """The columns, where the user names none.

        Raises `InvalidInput` for a table: what Spark gives at `CREATE TABLE` has the name of the format in it.
        """
        if self.options.get("provider") == self.name():
            raise InvalidInput(f"a buffer cannot be made a table of the catalog. {NO_TABLES}")
        return columns_of(ReadOptions.of(self.options))

    def reader(self, schema: StructType) -> DataSourceReader:
        """Look at the backlog."""
        options = ReadOptions.of(self.options)
        return BufferReader(options, self._rows(schema, options), self._cores())

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802  Spark's name, here and below
        """Consume."""
        options = ReadOptions.of(self.options)
        reader = BufferStreamReader if self.has_admission else CommitStreamReader
        return reader(options, self._rows(schema, options), self._cores(), self.budget)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Append to a buffer."""
        return BufferWriter(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        """Append each block to a buffer."""
        return BufferStreamWriter(self.options, schema, overwrite)

    def _rows(self, schema: StructType, options: ReadOptions) -> Rows:
        check_schema(schema, options)
        return rows_for(schema, options)

    def _cores(self) -> int:
        return self.cores or os.cpu_count() or 1


def register(spark: SparkSession) -> None:
    """Make the data source known to a session, as `format("penstock")`.

    The session may be one of Spark Connect. The workers of a local session run the Python that runs this, unless
    `PYSPARK_PYTHON` or `spark.pyspark.python` chooses another one.

    Raises `InvalidInput` for what is no session, and on Spark 3.5, which has no data sources in Python.
    """
    check_data_sources()
    if not is_session(spark):
        raise InvalidInput(f"register takes a SparkSession, not {type(spark).__name__}")
    use_this_python(spark)
    hide_credentials(spark)
    spark.dataSource.register(known_to(spark, PenstockDataSource))


def known_to(spark: SparkSession, source: type[_Source], **attributes: object) -> type[_Source]:
    """The data source as a class that knows how many tasks the session runs at once, and what else it is given.

    It is in no module, so that it is pickled by value, with its attributes: the process that plans has no session to
    ask.
    """
    attributes = {"cores": cores_of(spark), "__module__": "__main__", **attributes}
    return type(source.__name__, (source,), attributes)
