"""What differs between the versions of Spark, 3.5 to 4.3. The other modules import such names from here.

| | 3.5 | 4.0 | 4.1 | 4.2 and later |
|---|---|---|---|---|
| data sources in Python | no | yes | yes | yes |
| a stream's tasks write Arrow batches | | by a class that is a batch writer too | yes | yes |
| `latestOffset(start, limit)`, and a reader's own `availableNow` | | no | no | yes |

Where Spark lacks a class, an empty one takes its place, so that modules can be imported and their other parts used.
"""

from __future__ import annotations

import inspect
from functools import cache
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
import pyspark
from pyspark.sql import types
from pyspark.sql.types import StructType

from penstock.errors import InvalidInput

try:
    from pyspark.util import PythonEvalType
except ImportError:  # Spark 3.5
    from pyspark.rdd import PythonEvalType  # type: ignore[no-redef]

VERSION: tuple[int, int] = tuple(int(part) for part in pyspark.__version__.split(".")[:2])  # type: ignore[assignment]
"""Major and minor."""

MAP_ARROW_ITER: Any = PythonEvalType.SQL_MAP_ARROW_ITER_UDF
"""What `mapInArrow` says of its function."""

if TYPE_CHECKING:
    from pyspark.sql.datasource import (
        DataSource,
        DataSourceArrowWriter,
        DataSourceReader,
        DataSourceStreamArrowWriter,
        DataSourceStreamReader,
        DataSourceStreamWriter,
        DataSourceWriter,
        InputPartition,
        WriterCommitMessage,
    )
    from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, SupportsTriggerAvailableNow
else:

    def _missing(name: str, *bases: type) -> type:
        """A class in the place of one that Spark does not have."""
        return type(name, bases, {"__module__": __name__})

    try:
        from pyspark.sql.datasource import (
            DataSource,
            DataSourceArrowWriter,
            DataSourceReader,
            DataSourceStreamReader,
            DataSourceStreamWriter,
            DataSourceWriter,
            InputPartition,
            WriterCommitMessage,
        )
    except ImportError:

        class InputPartition:
            """As in Spark 4: `Pipeline` sends its partitions to tasks by itself."""

            def __init__(self, value: Any) -> None:
                self.value = value

        class DataSource:
            """Refuses to be created."""

            def __init__(self, _options: object) -> None:
                check_data_sources()

        DataSourceReader, DataSourceStreamReader = _missing("DataSourceReader"), _missing("DataSourceStreamReader")
        DataSourceWriter, DataSourceStreamWriter = _missing("DataSourceWriter"), _missing("DataSourceStreamWriter")
        DataSourceArrowWriter = _missing("DataSourceArrowWriter", DataSourceWriter)
        WriterCommitMessage = _missing("WriterCommitMessage")

    try:
        from pyspark.sql.datasource import DataSourceStreamArrowWriter
    except ImportError:
        # Spark 4.0 asks only whether a writer is an Arrow writer, and has tasks give it batches then.
        DataSourceStreamArrowWriter = _missing(
            "DataSourceStreamArrowWriter", DataSourceStreamWriter, DataSourceArrowWriter
        )

    try:
        from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, SupportsTriggerAvailableNow
    except ImportError:
        ReadLimit, SupportsTriggerAvailableNow = _missing("ReadLimit"), _missing("SupportsTriggerAvailableNow")
        ReadAllAvailable = _missing("ReadAllAvailable", ReadLimit)

__all__ = [
    "DataSource",
    "DataSourceArrowWriter",
    "DataSourceReader",
    "DataSourceStreamArrowWriter",
    "DataSourceStreamReader",
    "DataSourceStreamWriter",
    "DataSourceWriter",
    "InputPartition",
    "ReadAllAvailable",
    "ReadLimit",
    "SupportsTriggerAvailableNow",
    "WriterCommitMessage",
]

HAS_DATA_SOURCES = VERSION >= (4, 0)
"""Whether Spark has data sources in Python: `format("penstock")`."""

HAS_ADMISSION = VERSION >= (4, 2)
"""Whether Spark tells a stream reader where the next block starts, and lets it end an `availableNow` run."""

TIME_TYPES: tuple[type[types.DataType], ...] = tuple(
    getattr(types, name) for name in ("TimeType",) if hasattr(types, name)
)
"""The type of a time of day, where Spark has one."""


def check_data_sources() -> None:
    """Raise `InvalidInput` where Spark has no data sources in Python."""
    if not HAS_DATA_SOURCES:
        raise InvalidInput(
            f'format("penstock") needs Spark 4.0 or newer, and this is {pyspark.__version__}: it has no data sources '
            "in Python. Use penstock.spark.Pipeline, which works here"
        )


def arrow_schema(schema: StructType) -> pa.Schema:
    """The Arrow schema that Spark expects of a batch with these columns: timestamps are instants, in UTC."""
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(schema, timezone="UTC") if _takes_timezone() else to_arrow_schema(schema)


@cache
def _takes_timezone() -> bool:
    from pyspark.sql.pandas.types import to_arrow_schema

    return "timezone" in inspect.signature(to_arrow_schema).parameters


def columns_from_ddl(text: str) -> types.DataType:
    """What Spark makes of DDL such as `id bigint, event string`. Spark 3.5 has no public name for it."""
    read = getattr(StructType, "fromDDL", None) or types._parse_datatype_string
    return cast("types.DataType", read(text))
