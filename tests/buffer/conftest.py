"""Every kind of store that the buffer's contract is tested on."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.storage import ObjectStore, open_store
from tests.support import manifests
from tests.support.servers import BUCKET, S3Server

_HERE = Path(__file__).parent
KINDS = ("memory", "disk", "s3")

# What depends most on the answers of a bucket, for each version: `make test` runs these on S3 too, `make chaos` all.
ON_S3 = {
    "test_ack.py",
    "test_appending.py",
    "test_appending_on_version_1.py",
    "test_appending_on_version_2.py",
    "test_epochs.py",
    "test_fence.py",
    "test_floor.py",
    "test_floor_and_clocks.py",
    "test_flush.py",
    "test_native_evidence.py",
    "test_next_batch.py",
    "test_opendata_evidence.py",
    "test_opendata_manifest.py",
    "test_what_is_deleted.py",
}


@pytest.hookimpl(tryfirst=True)  # before those that are not wanted are left out
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """S3 answers slowly, and to a buffer just as every other store does, which `tests/storage` shows of each call."""
    for item in items:
        params = item.callspec.params if _HERE in item.path.parents and hasattr(item, "callspec") else {}
        if params.get("store") == "s3" and item.path.name not in ON_S3:
            item.add_marker(pytest.mark.chaos)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Everything here holds on both versions of the manifest; a file about one of them says so, as `MANIFESTS`."""
    if "format" not in metafunc.module.__name__.split("."):
        metafunc.parametrize("manifest", getattr(metafunc.module, "MANIFESTS", manifests.KINDS), indirect=True)


@pytest.fixture(autouse=True)
def manifest(request: pytest.FixtureRequest) -> Iterator[str]:
    """What a buffer gets here that is not there yet."""
    kind = getattr(request, "param", manifests.current())
    with manifests.new_buffers_are(kind):
        yield kind


@pytest.fixture(scope="module")
def silence() -> Iterator[None]:
    """Nobody reads the warnings of so many runs, and keeping them takes memory."""
    log = logging.getLogger("penstock")
    before = log.level
    log.setLevel(logging.CRITICAL)
    yield
    log.setLevel(before)


@pytest.fixture(params=KINDS)
def store(request: pytest.FixtureRequest, fresh_name: str, tmp_path: Path) -> ObjectStore:
    """An empty store of each kind."""
    match request.param:
        case "memory":
            return open_store(f"memory://{fresh_name}")
        case "disk":
            return open_store(tmp_path / "store")
        case _:
            s3: S3Server = request.getfixturevalue("s3_server")
            return open_store(f"s3://{BUCKET}/{fresh_name}", **s3.options)


@pytest.fixture
def memory(fresh_name: str) -> ObjectStore:
    """An empty store in memory, for what does not depend on the kind of store."""
    return open_store(f"memory://{fresh_name}")
