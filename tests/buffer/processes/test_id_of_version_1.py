"""The id of a manifest of version 1 is an object beside it, written first; on version 2 the id is in the head."""

from __future__ import annotations

from pathlib import Path

from penstock.buffer import Manifest
from penstock.buffer.manifest.ownership import read_id
from penstock.storage import LocalStore
from tests.buffer.processes.stop_points import ID_WRITTEN, drain, kill_at, produce_one
from tests.support.processes import Start

MANIFESTS = ["opendata"]


def test_a_producer_killed_after_the_id_of_version_1_leaves_it_for_the_next_one(tmp_path: Path, start: Start) -> None:
    kill_at(ID_WRITTEN, tmp_path, start, [b"victim"])
    written = read_id(LocalStore(tmp_path), "ingest/manifest")
    assert [meta.path for meta in LocalStore(tmp_path).list_objects()] == ["ingest/manifest.id"]

    produce_one(tmp_path, b"next")

    assert written == Manifest.read(tmp_path).id
    assert drain(tmp_path) == [(0, [b"next"])]
