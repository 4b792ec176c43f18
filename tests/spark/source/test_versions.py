"""What holds on every Spark that Penstock supports, and what an older one says instead."""

from __future__ import annotations

import pickle
import subprocess
import sys
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StructField, StructType, TimestampType

from penstock.errors import InvalidInput
from penstock.spark import PenstockDataSource, register
from penstock.spark.map_in_arrow import map_in_arrow
from penstock.spark.sessions import SESSION_DEFAULTS, cores_of, is_connect, is_session
from penstock.spark.source.partitions import BatchRun
from penstock.spark.versions import HAS_DATA_SOURCES, arrow_schema

ANY_SPARK = True


def doubled(batches: Any) -> Any:
    for batch in batches:
        yield pa.RecordBatch.from_arrays(
            [pa.array([2 * number for number in batch.column(0).to_pylist()], pa.int64())], names=["twice"]
        )


@pytest.mark.parametrize(
    "schema", ["twice bigint", StructType([StructField("twice", LongType())])], ids=["ddl", "type"]
)
def test_map_in_arrow_runs_a_function_on_batches(spark: Any, schema: Any) -> None:
    frame = spark.range(5).selectExpr("id as `a.b`")

    rows = map_in_arrow(frame, doubled, schema).collect()

    assert sorted(row.twice for row in rows) == [0, 2, 4, 6, 8]


def test_the_package_and_its_names_are_imported_without_pandas() -> None:
    code = (
        "import sys; sys.modules['pandas'] = None; import penstock.spark as p; [getattr(p, name) for name in p.__all__]"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_a_timestamp_is_an_instant_in_utc() -> None:
    schema = arrow_schema(StructType([StructField("at", TimestampType())]))

    assert schema.field("at").type == pa.timestamp("us", tz="UTC")


def test_a_partition_travels() -> None:
    assert pickle.loads(pickle.dumps(BatchRun([]))).pieces == ()


def test_a_session_is_known(spark: Any) -> None:
    assert (is_session(spark), is_connect(spark), cores_of(spark)) == (True, False, 2)
    assert [is_session(one) for one in (None, "spark", spark.sparkContext, spark.range(1))] == [False] * 4


def test_the_settings_to_start_with_are_settings_of_spark(spark: Any) -> None:
    defaults = spark.sparkContext._jvm.org.apache.spark.internal.config.Python
    known = {getattr(defaults, name)().key() for name in ("PYTHON_AUTH_SOCKET_TIMEOUT",)}

    assert set(SESSION_DEFAULTS) == known


@pytest.mark.skipif(HAS_DATA_SOURCES, reason="this Spark has data sources in Python")
def test_a_spark_without_data_sources_says_what_works_instead(spark: Any) -> None:
    for use in (lambda: register(spark), lambda: PenstockDataSource({"path": "/tmp/x"})):
        with pytest.raises(
            InvalidInput, match=r"needs Spark 4.0 or newer, and this is 3\.5.* Use penstock\.spark\.Pip"
        ):
            use()


def test_register_refuses_what_is_no_session() -> None:
    with pytest.raises(InvalidInput):
        register("spark")  # type: ignore[arg-type]
