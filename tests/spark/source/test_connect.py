"""The data source through Spark Connect: a real server, in a process of its own."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from penstock.spark.versions import HAS_ADMISSION
from tests.support.repository import ROOT
from tests.support.spark_session import skip_without_java

# Each a package of Spark's extra `connect`.
MISSING = [name for name in ("grpc", "grpc_status", "pandas") if importlib.util.find_spec(name) is None]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What a user of Spark Connect finds."""
    if MISSING:
        pytest.skip(f"Spark Connect needs {', '.join(MISSING)}: `make test-connect` installs what it needs")
    skip_without_java()
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    ended = subprocess.run(
        [sys.executable, Path(__file__).with_name("connect_job.py"), tmp_path_factory.mktemp("connect")],
        env={**os.environ, "PYSPARK_PYTHON": sys.executable, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert ended.returncode == 0, ended.stderr
    result: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return result


def test_its_session_is_a_session_whose_cores_are_known_where_it_is_local(found: dict[str, Any]) -> None:
    assert found["kind"].startswith("pyspark.sql.connect")
    assert (found["is_session"], found["cores"]) == (True, 2)


def test_it_writes_and_reads(found: dict[str, Any]) -> None:
    assert found["read"] == found["view"] == ["a", "b", "c"]


def test_its_streams_consume_and_append_each_event_once(found: dict[str, Any]) -> None:
    assert sorted(found["copied"]) == ["a", "a", "b", "c"]
    assert found["queued"] == ([] if HAS_ADMISSION else [1])  # by sequence: earlier versions ack with the next block


def test_map_in_arrow_works_there(found: dict[str, Any]) -> None:
    assert found["mapped"] == 4


def test_its_errors_have_ours_in_them(found: dict[str, Any]) -> None:
    assert "unknown option 'maxbytespertriger': is 'maxBytesPerTrigger' meant" in found["error"]
