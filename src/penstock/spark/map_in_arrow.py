"""`DataFrame.mapInArrow`, where pandas is not installed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.types import StructType
from pyspark.sql.udf import UserDefinedFunction

from penstock.spark.sessions import is_connect
from penstock.spark.versions import MAP_ARROW_ITER, VERSION

BatchFunction: TypeAlias = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def map_in_arrow(df: DataFrame, function: BatchFunction, schema: StructType | str) -> DataFrame:
    """As `df.mapInArrow(function, schema)`.

    PySpark asks for pandas on the driver there and does not use it: these are its steps without that check. Spark
    Connect cannot do without pandas in any case, and has its own `mapInArrow` called.
    """
    if is_connect(df):
        return df.mapInArrow(function, schema)
    udf = UserDefinedFunction(function, returnType=schema, evalType=MAP_ARROW_ITER)
    column: Any = udf(*(df[quoted(name)] for name in df.columns))
    if VERSION < (4, 0):
        return DataFrame(df._jdf.pythonMapInArrow(column._jc.expr(), False), df.sparkSession)
    return DataFrame(df._jdf.mapInArrow(column._jc, False, None), df.sparkSession)


def quoted(name: str) -> str:
    """A column's name as Spark reads it: a dot in it is no path.

    >>> quoted("a.b")
    '`a.b`'
    """
    return "`" + name.replace("`", "``") + "`"
