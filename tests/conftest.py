"""What tests of every package use: servers, which start when the first test asks for them, and processes."""

from __future__ import annotations

import functools
import gc
import os
import re
import shutil
import subprocess
import tempfile
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from prometheus_client import Counter, Gauge, Histogram

from penstock import metrics
from tests.support import manifests, servers, twins
from tests.support.processes import Child, Start
from tests.support.repository import ROOT
from tests.support.servers import BUCKET, AzureServer, S3Server
from tests.support.twins import Twins

# Every JVM that a test starts reads this, be it the driver's of a command. It lives for seconds: it need not be
# compiled for days.
SHORT_LIVED_JVM = {"SPARK_SUBMIT_OPTS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--manifests native --manifests opendata`: over which versions the suite of Spark runs, every file of it."""
    parser.addoption("--manifests", action="append", choices=manifests.KINDS, help="versions of the manifest")


def pytest_configure(config: pytest.Config) -> None:
    os.environ.update(SHORT_LIVED_JVM)
    # A busy machine is no reason to fail: an example has no deadline of its own, and may take its time to be drawn.
    settings.register_profile(
        "all", parent=settings.default, deadline=None, suppress_health_check=[HealthCheck.too_slow]
    )
    settings.register_profile("quick", parent=settings.get_profile("all"), max_examples=25)
    settings.load_profile("quick" if "not slow" in config.option.markexpr else "all")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Those of the one Spark session first: one after the other they take the longest."""
    items.sort(key=lambda item: not _shares_spark(_file_of(item.nodeid)))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """One worker runs all tests that share a Spark session; the others run the rest beside it, file by file."""
    from xdist.scheduler import LoadFileScheduling  # type: ignore[import-untyped]

    class OneSession(LoadFileScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            file = _file_of(nodeid)
            return "spark" if _shares_spark(file) else file

    return OneSession(config, log)


def _file_of(nodeid: str) -> str:
    return nodeid.partition("::")[0]


@functools.cache
def _shares_spark(file: str) -> bool:
    """Whether tests of a file ask for the session."""
    return file.startswith("tests/spark/") and bool(re.search(r"\b(spark|session): Any", (ROOT / file).read_text()))


@pytest.fixture(scope="session")
def s3_server() -> Iterator[S3Server]:
    with servers.s3_server() as server:
        server.create_bucket(BUCKET)
        yield server


@pytest.fixture(scope="session")
def azure_server() -> Iterator[AzureServer]:
    with servers.azure_server() as server:
        server.create_container(BUCKET)
        yield server


@pytest.fixture(autouse=True)
def no_clouds_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a developer's shell has to say about clouds and proxies is no part of a test."""
    for name in os.environ:
        if name.upper().startswith(("AWS_", "AZURE_", "GOOGLE_", "GCP_", "GCS_")) or name.upper().endswith("_PROXY"):
            monkeypatch.delenv(name)


@pytest.fixture(autouse=True, scope="module")
def no_metrics_of_other_files() -> Iterator[None]:
    """Every test has buffers of its own, and a metric is read by going through the labels of them all."""
    yield
    for metric in vars(metrics).values():
        if isinstance(metric, Counter | Gauge | Histogram) and metric._labelnames:
            metric.clear()


@pytest.fixture
def fresh_name() -> str:
    """A name that no other test has: of a memory store, or a prefix in a bucket."""
    return f"test-{uuid.uuid4().hex}"


@pytest.fixture
def start() -> Iterator[Start]:
    """Start processes that are gone when the test is over."""
    started: list[Child] = []

    def start(work: Callable[..., object], *args: object) -> Child:
        child = Child(work, *args)
        started.append(child)
        return child

    yield start
    for child in started:
        child.clear_away()


@pytest.fixture
def mount() -> Iterator[Callable[[str], Path]]:
    """Mount small file systems in memory, with the given options; only root may.

    Not below pytest's own folder: what a killed run leaves mounted would fail the next one, which clears that away.
    """
    if os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("mounting a file system takes root, and a `mount` command")
    points: list[Path] = []

    def mount(options: str) -> Path:
        point = Path(tempfile.mkdtemp(prefix="penstock-mounted-"))
        tried = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(point)], capture_output=True, text=True, check=False
        )
        if tried.returncode:
            pytest.skip(f"this system does not let root mount a file system: {tried.stderr.strip()}")
        points.append(point)
        return point

    yield mount
    for point in reversed(points):
        subprocess.run(["umount", str(point)], check=True)
        point.rmdir()


@pytest.fixture
def quiet_collector() -> Iterator[None]:
    """The garbage collector rests: to look at what thousands of tasks have holds up any loop for 40 ms."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.fixture(params=twins.NAMES)
def call(request: pytest.FixtureRequest) -> Iterator[Twins]:
    """Calls methods, or their twins on one of two loops."""
    chosen = twins.twins_of(request.param)
    yield chosen
    chosen.close()
