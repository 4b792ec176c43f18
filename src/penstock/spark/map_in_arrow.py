"""`DataFrame.mapInArrow`, where pandas is not installed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.pandas.functions import vectorized_udf  # type: ignore[attr-defined]
from pyspark.sql.types import StructType
from pyspark.util import PythonEvalType

BatchFunction: TypeAlias = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def map_in_arrow(df: DataFrame, function: BatchFunction, schema: StructType | str) -> DataFrame:
    """As `df.mapInArrow(function, schema)`.

    PySpark 4.3 asks for pandas on the driver there and does not use it: these are its steps without that check.
    """
    udf: Any = vectorized_udf(function, returnType=schema, functionType=PythonEvalType.SQL_MAP_ARROW_ITER_UDF)
    column = udf(*(df[quoted(name)] for name in df.columns))
    return DataFrame(df._jdf.mapInArrow(column._jc, False, None), df.sparkSession)


def quoted(name: str) -> str:
    """A column's name as Spark reads it: a dot in it is no path.

    >>> quoted("a.b")
    '`a.b`'
    """
    return "`" + name.replace("`", "``") + "`"
