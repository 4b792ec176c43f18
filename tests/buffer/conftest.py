"""Every kind of store that the buffer's contract is tested on."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.storage import ObjectStore, open_store
from tests.servers import BUCKET, S3Server

KINDS = ("memory", "disk", "s3")


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
