"""One Spark session for all tests that do not need their own, and buffers for them to read."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.buffer.manifest.v1.codec import OpenDataManifest
from tests.spark.backlogs import Backlog, stop_readers
from tests.support import manifests
from tests.support.repository import ROOT
from tests.support.servers import BUCKET, S3Server

CHECK_JAVA = ROOT / "scripts" / "check-java"


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
        .config("spark.sql.shuffle.partitions", "2")  # and not 200: a stream has no other way to make them fewer
        .config("spark.sql.warehouse.dir", str(tmp_path_factory.mktemp("warehouse")))
        .getOrCreate()
    )
    yield session
    session.stop()


@pytest.fixture(autouse=True)
def _stopped_readers() -> Iterator[None]:
    yield
    stop_readers()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Everything here holds on both versions of the manifest. With Spark in it that takes long.

    So `make test` runs the files that say so, as `MANIFESTS`, over both, and `make chaos` all of them; but for those
    that are about one version.
    """
    said = getattr(metafunc.module, "MANIFESTS", None)
    wanted = metafunc.config.getoption("manifests") or said or manifests.KINDS[:1]
    metafunc.parametrize("manifest", [kind for kind in wanted if said is None or kind in said], indirect=True)


@pytest.fixture(autouse=True)
def manifest(request: pytest.FixtureRequest) -> Iterator[str]:
    """What a buffer gets here that is not there yet."""
    kind: str = request.param
    with manifests.new_buffers_are(kind):
        yield kind


@pytest.fixture(autouse=True)
def interrupts() -> Iterator[None]:
    """A task ignores Ctrl-C, and some run in the tests' own process."""
    before = signal.getsignal(signal.SIGINT)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def backlog(tmp_path: Path) -> Backlog:
    return made(Backlog(str(tmp_path / "buffer")))


@pytest.fixture
def on_s3(s3_server: S3Server, fresh_name: str) -> Backlog:
    options = {name: str(value).lower() for name, value in s3_server.options.items()}
    return made(Backlog(f"s3://{BUCKET}/{fresh_name}", options))


def made(backlog: Backlog) -> Backlog:
    """A buffer of version 1 is there before Spark writes to it: its workers do not know what this test makes."""
    if manifests.current() == "opendata":
        backlog.store.put_if_absent("ingest/manifest", OpenDataManifest.empty().data)
    return backlog


@pytest.fixture(params=["disk", "s3"])
def anywhere(request: pytest.FixtureRequest) -> Backlog:
    found: Backlog = request.getfixturevalue("backlog" if request.param == "disk" else "on_s3")
    return found


@pytest.fixture(scope="module")
def session(spark: Any) -> Any:
    from penstock.spark import register

    register(spark)
    return spark
