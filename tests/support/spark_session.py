"""Sessions of Spark on this machine, for tests and for the drivers that tests start."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest

from tests.support.repository import ROOT

_CHECK_JAVA = ROOT / "scripts" / "check-java"


def skip_without_java() -> None:
    """Skip a test where the Java that Spark needs is missing."""
    why_not = subprocess.run([_CHECK_JAVA], capture_output=True, text=True, check=True).stdout
    if why_not:
        pytest.skip(" ".join(why_not.split()))


def needs_spark(major: int, minor: int, why: str) -> pytest.MarkDecorator:
    """Skip a test on an older Spark, for this reason."""
    import pyspark

    found = tuple(int(part) for part in pyspark.__version__.split(".")[:2])
    return pytest.mark.skipif(found < (major, minor), reason=f"Spark {pyspark.__version__}: {why}")


def local_session(**config: object) -> Any:
    """A session with two cores. A setting's name has `_` for each dot."""
    from pyspark.sql import SparkSession

    # Without it the workers run whatever `python3` is on the PATH, where Penstock is not installed.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    settings: dict[str, object] = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.shuffle.partitions": "2",  # and not 200: a stream has no other way to make them fewer
        "spark.python.authenticate.socketTimeout": "60s",  # a busy machine starts a Python slowly
        **{name.replace("_", "."): value for name, value in config.items()},
    }
    builder = SparkSession.builder.master("local[2]").appName("penstock tests")
    for name, value in settings.items():
        builder = builder.config(name, str(value))
    return builder.getOrCreate()
