"""Every kind of store, for the tests of the one contract. Servers start when the first test asks for them."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.storage import ObjectStore, open_store
from tests import servers
from tests.servers import AzureServer, S3Server

KINDS = ("memory", "disk", "disk-unsynced", "s3", "azure")
BUCKET = "tests"


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


@pytest.fixture
def fresh_name() -> str:
    """A name that no other test has: of a memory store, or a prefix in a bucket."""
    return f"test-{uuid.uuid4().hex}"


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def store(kind: str, fresh_name: str, tmp_path: Path, request: pytest.FixtureRequest) -> ObjectStore:
    """An empty store of each kind."""
    match kind:
        case "memory":
            return open_store(f"memory://{fresh_name}")
        case "disk":
            return open_store(tmp_path / "store")
        case "disk-unsynced":
            return open_store(tmp_path / "store", sync=False)
        case "s3":
            s3: S3Server = request.getfixturevalue("s3_server")
            return open_store(f"s3://{BUCKET}/{fresh_name}", **s3.options)
        case "azure":
            azure: AzureServer = request.getfixturevalue("azure_server")
            return open_store(f"az://{BUCKET}/{fresh_name}", **azure.options)
        case _:
            raise AssertionError(kind)
