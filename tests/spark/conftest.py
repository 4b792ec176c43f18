"""One Spark session for all tests that do not need their own, and buffers for them to read."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.buffer.manifest.v1.codec import OpenDataManifest
from tests.support import manifests
from tests.support.backlogs import Backlog, stop_readers
from tests.support.servers import BUCKET, S3Server
from tests.support.spark_session import local_session, skip_without_java


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    skip_without_java()
    session = local_session(spark_sql_warehouse_dir=tmp_path_factory.mktemp("warehouse"))
    yield session
    session.stop()


@pytest.fixture(autouse=True)
def _stopped_readers() -> Iterator[None]:
    yield
    stop_readers()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Everything here holds on both versions of the manifest. With Spark in it that takes long.

    So `make test` runs the files that name them, as `MANIFESTS`, over both, and `make chaos` all of them; but for
    those that are about one version.
    """
    named = getattr(metafunc.module, "MANIFESTS", None)
    wanted = metafunc.config.getoption("manifests") or named or manifests.KINDS[:1]
    metafunc.parametrize("manifest", [kind for kind in wanted if named is None or kind in named], indirect=True)


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
    return created(Backlog(str(tmp_path / "buffer")))


@pytest.fixture
def on_s3(s3_server: S3Server, fresh_name: str) -> Backlog:
    options = {name: str(value).lower() for name, value in s3_server.options.items()}
    return created(Backlog(f"s3://{BUCKET}/{fresh_name}", options))


def created(backlog: Backlog) -> Backlog:
    """A buffer of version 1 is there before Spark writes to it: its workers do not know which version a test wants."""
    if manifests.current() == "opendata":
        backlog.store.put_if_absent("ingest/manifest", OpenDataManifest.empty().data)
    return backlog


@pytest.fixture(params=["disk", pytest.param("s3", marks=pytest.mark.slow)])
def anywhere(request: pytest.FixtureRequest) -> Backlog:
    found: Backlog = request.getfixturevalue("backlog" if request.param == "disk" else "on_s3")
    return found


@pytest.fixture(scope="module")
def session(spark: Any) -> Any:
    from penstock.spark import register

    register(spark)
    return spark
