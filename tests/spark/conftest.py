"""One Spark session for all tests that do not need their own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

CHECK_JAVA = Path(__file__).parents[2] / "scripts" / "check-java"


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    why_not = subprocess.run([CHECK_JAVA], capture_output=True, text=True, check=True).stdout
    if why_not:
        pytest.skip(" ".join(why_not.split()))
    from pyspark.sql import SparkSession

    # Without it the workers run whatever `python3` is on the PATH, where Penstock is not installed.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    session = (
        SparkSession.builder.master("local[2]")
        .appName("penstock tests")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.sql.warehouse.dir", str(tmp_path_factory.mktemp("warehouse")))
        .getOrCreate()
    )
    yield session
    session.stop()
