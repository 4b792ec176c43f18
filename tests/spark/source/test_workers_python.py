"""Which Python the workers run: the one that runs the driver, where a virtualenv is not activated too."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.spark import sessions
from penstock.spark.spark_errors import our_error
from tests.support.repository import ROOT
from tests.support.spark_session import needs_spark, skip_without_java

ANY_SPARK = True

JOB = """
import sys
from pyspark.sql import SparkSession
from penstock.spark import register

builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
spark = builder.config("spark.python.authenticate.socketTimeout", "60s").getOrCreate()
register(spark)
place = sys.argv[1]
spark.createDataFrame([("a",), ("b",)], "value string").write.format("penstock").mode("append").save(place)
print("rows:", spark.read.format("penstock").load(place).count())
stream = spark.readStream.format("penstock").load(place).select("value").writeStream.format("penstock")
query = stream.option("checkpointLocation", place + "-checkpoint").trigger(availableNow=True).start(place + "-copy")
query.awaitTermination()
print("copied:", spark.read.format("penstock").load(place + "-copy").count())
spark.stop()
"""


@pytest.fixture
def other_python(tmp_path: Path) -> Path:
    """A `python3` that has no packages at all."""
    there = tmp_path / "bin" / "python3"
    there.parent.mkdir()
    there.write_text(f'#!/bin/sh\nexec "{sys.executable}" -I -S "$@"\n')
    there.chmod(0o755)
    return there


@pytest.mark.slow
@needs_spark(4, 0, "it has no data sources in Python")
def test_a_session_of_a_virtualenv_that_is_not_activated_reads_and_writes(tmp_path: Path, other_python: Path) -> None:
    skip_without_java()
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYSPARK")}
    environment["PATH"] = os.pathsep.join([str(other_python.parent), environment["PATH"]])
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT / "src"), str(ROOT)])

    ended = subprocess.run(
        [sys.executable, "-c", JOB, tmp_path / "events"], env=environment, capture_output=True, text=True, timeout=240
    )

    assert "rows: 2" in ended.stdout, ended.stderr
    assert "copied: 2" in ended.stdout, ended.stderr


@pytest.mark.parametrize(
    ("master", "is_set"),
    [("local", True), ("local[*]", True), ("local[4, 2]", True), ("spark://host:7077", False), ("yarn", False)],
)
def test_before_a_session_it_is_set_for_a_local_master(
    monkeypatch: pytest.MonkeyPatch, master: str, is_set: bool
) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", "")  # so that it is put back
    monkeypatch.delenv("PYSPARK_PYTHON")

    sessions.use_this_python(master=master)

    assert os.environ.get("PYSPARK_PYTHON") == (sys.executable if is_set else None)


def test_one_that_was_chosen_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", "/opt/python")

    sessions.use_this_python()

    assert os.environ["PYSPARK_PYTHON"] == "/opt/python"


class _Conf:
    def get(self, _: str) -> None:
        return None


class _Context:
    master = "local[2]"

    def __init__(self, python: str) -> None:
        self.pythonExec = python

    def getConf(self) -> _Conf:  # noqa: N802  Spark's name
        return _Conf()


class _Session:
    def __init__(self, python: str) -> None:
        self.sparkContext = _Context(python)


@pytest.mark.parametrize("other", [True, False])
def test_another_one_that_was_chosen_is_one_line_in_the_log(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, other_python: Path, other: bool
) -> None:
    chosen = str(other_python) if other else sys.executable
    monkeypatch.setenv("PYSPARK_PYTHON", chosen)

    with caplog.at_level(logging.WARNING):
        sessions.use_this_python(_Session(chosen))  # type: ignore[arg-type]

    lines = [record.getMessage() for record in caplog.records]
    assert [f"Spark's workers run {chosen}" in line for line in lines] == [True] * other


@pytest.mark.parametrize("module", ["pyspark", "penstock", "pyarrow"])
def test_a_module_that_the_workers_lack_is_one_line(module: str) -> None:
    text = f"Error from python worker:\n  x (ModuleNotFoundError: No module named '{module}')\n\tat org.apache.spark"

    error = our_error(RuntimeError(text))

    assert str(error).startswith(f"the Python of Spark's workers has no module '{module}'")
    assert "\n" not in str(error)


def test_a_module_that_a_function_of_the_users_lacks_is_its_own_error() -> None:
    assert our_error(RuntimeError("ModuleNotFoundError: No module named 'users'")) is None


@pytest.mark.parametrize(
    ("text", "is_slow"),
    [
        ("org.apache.spark.SparkException: Python worker failed to connect back.", True),
        ("java.net.SocketTimeoutException: Timed out while waiting for the Python worker to connect back", True),
        ("Python worker exited unexpectedly (crashed)", False),
    ],
)
def test_a_slow_start_is_told_from_other_failures(text: str, is_slow: bool) -> None:
    assert sessions.is_slow_start(RuntimeError(text)) is is_slow
