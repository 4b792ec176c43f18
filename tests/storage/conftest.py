"""Every kind of store, for the tests of the one contract."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.storage import ObjectStore, open_store
from tests.support.servers import BUCKET, AzureServer, S3Server

KINDS = (
    "memory",
    "disk",
    pytest.param("disk-unsynced", marks=pytest.mark.slow),
    "s3",
    pytest.param("azure", marks=pytest.mark.slow),
)


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
