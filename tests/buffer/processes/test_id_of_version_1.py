"""The id of a manifest of version 1 lies beside it, and is written before it; with version 2 it comes with the head."""

from __future__ import annotations

from pathlib import Path

from penstock.buffer import Manifest
from penstock.buffer.manifest.v1.buffer_id import read_id
from penstock.storage import LocalStore
from tests.buffer.processes.stopping import ID_WRITTEN
from tests.buffer.processes.test_producer_steps import drain, kill_at, produce_one
from tests.support.processes import Start

MANIFESTS = ["opendata"]


def test_a_producer_killed_after_the_id_of_version_1_leaves_it_for_the_next_one(tmp_path: Path, start: Start) -> None:
    kill_at(ID_WRITTEN, tmp_path, start, [b"victim"])
    left = read_id(LocalStore(tmp_path), "ingest/manifest")
    assert [meta.path for meta in LocalStore(tmp_path).list_objects()] == ["ingest/manifest.id"]

    produce_one(tmp_path, b"next")

    assert left == Manifest.read(tmp_path).id
    assert drain(tmp_path) == [(0, [b"next"])]
