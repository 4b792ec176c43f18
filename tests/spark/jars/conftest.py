"""Spark with Delta's and Iceberg's own jars: the readers that others use, and no part of Penstock.

`make test-spark-jars VERSION=4.1` gets the jars, and names their folder in `PENSTOCK_TABLE_JARS`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.spark.jars.lake import Lake
from tests.support.spark_session import local_session, skip_without_java

_DELTA = "io.delta.sql.DeltaSparkSessionExtension"
_ICEBERG = "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"


@pytest.fixture(scope="session")
def jars() -> list[Path]:
    folder = os.environ.get("PENSTOCK_TABLE_JARS")
    if not folder:
        pytest.skip("Delta's and Iceberg's jars are not here: make test-spark-jars gets them")
    return sorted(Path(folder).glob("*.jar"))


@pytest.fixture(scope="session")
def has_iceberg(jars: list[Path]) -> bool:
    return any(jar.name.startswith("iceberg-") for jar in jars)


@pytest.fixture(scope="session")
def spark(jars: list[Path], has_iceberg: bool, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A session with the jars. It runs the pipelines, too."""
    skip_without_java()
    session = local_session(
        spark_jars=",".join(map(str, jars)),
        spark_sql_extensions=",".join([_DELTA, *([_ICEBERG] if has_iceberg else [])]),
        spark_sql_session_timeZone="UTC",
        spark_databricks_delta_snapshotPartitions="2",  # and not 50, for logs of a few commits
        spark_sql_warehouse_dir=tmp_path_factory.mktemp("warehouse"),
    )
    session.conf.set("spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog")
    yield session
    session.stop()


@pytest.fixture
def lake(spark: Any, has_iceberg: bool, tmp_path: Path, fresh_name: str) -> Lake:
    if not has_iceberg:
        pytest.skip("no release of Iceberg fits this Spark")
    return Lake(spark, tmp_path / "warehouse", fresh_name.replace("-", "_"))
