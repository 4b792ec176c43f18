"""The stores and the versions of the manifest that the buffer is tested on."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.storage import LocalStore, ObjectStore, open_store
from tests.support import manifests
from tests.support.servers import BUCKET, S3Server

# These depend most on the replies of a bucket: they run on S3 instead of memory, which tells the same as the disk.
ON_S3 = {
    "test_ack.py",
    "test_appending.py",
    "test_appending_on_version_1.py",
    "test_appending_on_version_2.py",
    "test_epochs.py",
    "test_fence.py",
    "test_fetching.py",
    "test_floor.py",
    "test_floor_and_clocks.py",
    "test_flush.py",
    "test_native_evidence.py",
    "test_next_batch.py",
    "test_opendata_evidence.py",
    "test_opendata_manifest.py",
    "test_what_is_deleted.py",
}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Everything here holds on both versions of the manifest; a file about one of them says so, as `MANIFESTS`."""
    if "format" not in metafunc.module.__name__.split("."):
        metafunc.parametrize("manifest", getattr(metafunc.module, "MANIFESTS", manifests.KINDS), indirect=True)
    if "store" in metafunc.fixturenames:
        is_on_s3 = metafunc.definition.path.name in ON_S3
        kinds = ("disk", "s3") if is_on_s3 else ("memory", pytest.param("disk", marks=pytest.mark.slow))
        metafunc.parametrize("store", kinds, indirect=True)


@pytest.fixture(autouse=True)
def manifest(request: pytest.FixtureRequest) -> Iterator[str]:
    """What a buffer gets here that is not there yet."""
    kind = getattr(request, "param", manifests.current())
    with manifests.new_buffers_are(kind):
        yield kind


@pytest.fixture(scope="module")
def silence() -> Iterator[None]:
    """Do not keep the warnings of many runs in memory."""
    log = logging.getLogger("penstock")
    before = log.level
    log.setLevel(logging.CRITICAL)
    yield
    log.setLevel(before)


@pytest.fixture
def store(request: pytest.FixtureRequest, fresh_name: str, tmp_path: Path) -> ObjectStore:
    """An empty store, of two kinds. On disk without syncs, which `tests/storage` is about."""
    match request.param:
        case "memory":
            return open_store(f"memory://{fresh_name}")
        case "disk":
            return LocalStore(tmp_path / "store", sync=False)
        case _:
            s3: S3Server = request.getfixturevalue("s3_server")
            return open_store(f"s3://{BUCKET}/{fresh_name}", **s3.options)


@pytest.fixture
def memory(fresh_name: str) -> ObjectStore:
    """An empty store in memory, for what does not depend on the kind of store."""
    return open_store(f"memory://{fresh_name}")
